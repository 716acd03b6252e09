package ratelimit

import (
	"strconv"
	"strings"
)

// ParseCost reads a cost that was written as text. ok is false for what is no
// cost: negative, fractional, or not a decimal number; the request then costs
// 1, which is what is returned. tooBig reports a number beyond 64 bits; the
// cost returned with it is the greatest one, which no zone admits.
func ParseCost(text string) (cost int64, tooBig, ok bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 1, false, false
	}
	cost, err := strconv.ParseInt(text, 10, 64)
	if err != nil { // of digits alone only a range error can come
		return cost, true, true
	}
	return cost, false, true
}
