//go:build race

package dataprotection

// raceSlack is what pools allocate more under the race detector.
const raceSlack = 8
