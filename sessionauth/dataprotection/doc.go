// Package dataprotection seals and opens tokens with a shared key ring, in the
// format of ASP.NET Core Data Protection. A ring may be shared with ASP.NET Core
// applications: either side opens what the other sealed, when application name
// and purposes agree.
//
// A Ring is a set of keys read from a repository, each of which opens its
// tokens for ever, whatever its dates, until it is revoked. One of them, the
// default key, seals. A Protector belongs to one chain of purposes; a token of
// another chain does not open.
//
// # Guarantees
//
//   - A token that opens was sealed with a key of this ring, for exactly these
//     purposes, and has not been altered. The authentication code is checked in
//     constant time before anything is decrypted.
//   - A key that is revoked in the repository is refused here within a minute.
//     A repository whose revocations cannot all be read is refused as a whole.
//   - A ring that cannot be read again stays as it was last read.
//   - Keys are made when one is first needed, never by New or Load. Any number
//     of processes may need it at once: the ring they end with is one and the
//     same, and where the repository can lock it has one new key, not several.
//   - Key material is never part of an error or a log line.
//
// # Limits
//
// Keys that are protected at rest by a certificate, by Windows DPAPI or by
// anything else but the null encryptor are listed, cannot be used, and say why.
// The package holds keys in ordinary memory. Tokens do not expire by
// themselves; their content has to say so.
package dataprotection
