//go:build race

package ratelimit

// raceEnabled: under the race detector pools drop items at random, so
// allocations cannot be counted.
const raceEnabled = true
