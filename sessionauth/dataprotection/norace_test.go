//go:build !race

package dataprotection

const raceSlack = 0
