package ratelimit

// ClientAddress returns the address for which a client is counted, as text, for
// use in keys that combine it with something else: an IPv6 address cut to its
// prefix (0 means DefaultIPv6Prefix), IPv4 in IPv6 as IPv4, zones dropped. It is
// empty when the address cannot be read.
func ClientAddress(text string, ipv6Prefix int) string {
	if ipv6Prefix == 0 {
		ipv6Prefix = DefaultIPv6Prefix
	}
	c := cut(parseClient(text), ipv6Prefix)
	if !c.IsValid() {
		return ""
	}
	return c.String()
}
