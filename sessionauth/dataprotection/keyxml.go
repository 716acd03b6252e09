package dataprotection

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The names in key elements.
const (
	atRestNamespace    = "http://schemas.asp.net/2015/03/dataProtection"
	currentPrefix      = "Microsoft.AspNetCore.DataProtection."
	oldPrefix          = "Microsoft.AspNet.DataProtection."
	descriptorSpace    = currentPrefix + "AuthenticatedEncryption.ConfigurationModel."
	xmlEncryptionSpace = currentPrefix + "XmlEncryption."
)

// key is one key of the ring. It is immutable; whether it is revoked is said
// by the ring that lists it.
type key struct {
	id        KeyID
	created   time.Time
	activates time.Time
	expires   time.Time
	source    [sha256.Size]byte // of the XML, to recognize an unchanged element

	// A key that cannot be used has no master key and the reason here, which
	// is ErrUnusableKey.
	unusable  error
	algorithm *algorithm
	master    []byte
}

// parseKey reads a <key> element. An error means that the element is
// malformed. A well-formed key whose descriptor cannot be used is returned
// with the reason in it.
func parseKey(n *node) (*key, error) {
	text, _ := n.attr("id")
	id, err := ParseKeyID(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("id: %w", err)
	}
	k := &key{id: id}
	for _, date := range []struct {
		name string
		at   *time.Time
	}{
		{"creationDate", &k.created}, {"activationDate", &k.activates}, {"expirationDate", &k.expires},
	} {
		if *date.at, err = parseDate(n.childText(date.name)); err != nil {
			return nil, fmt.Errorf("%s: %w", date.name, err)
		}
	}
	if k.algorithm, k.master, err = parseDescriptor(n.child("descriptor")); err != nil {
		k.algorithm, k.master = nil, nil
		k.unusable = fmt.Errorf("%w: key %s %w", ErrUnusableKey, id, err)
	}
	return k, nil
}

var errDate = errors.New("not a date with a time zone")

// parseDate reads an XML date with a time zone.
func parseDate(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, errDate
	}
	return t.UTC(), nil
}

// formatDate writes a date as .NET does: up to seven digits of a fraction.
func formatDate(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.9999999Z") }

// parseDescriptor reads the algorithm and the master key. Its errors continue
// the phrase "key … ".
func parseDescriptor(outer *node) (*algorithm, []byte, error) {
	if outer == nil {
		return nil, nil, errors.New("has no descriptor")
	}
	inner := outer.only()
	if inner == nil {
		return nil, nil, errors.New("has no single descriptor")
	}
	if err := openAtRest(inner); err != nil {
		return nil, nil, err
	}
	kind, _ := outer.attr("deserializerType")
	alg, err := parseAlgorithm(typeName(kind), inner)
	if err != nil {
		return nil, nil, err
	}
	master, err := parseMasterKey(inner)
	return alg, master, err
}

// typeName returns a .NET type's name without its assembly, in the present
// namespace.
func typeName(qualified string) string {
	name, _, _ := strings.Cut(qualified, ",")
	name = strings.TrimSpace(name)
	if rest, ok := strings.CutPrefix(name, oldPrefix); ok {
		return currentPrefix + rest
	}
	return name
}

// shown shortens a foreign name for an error.
func shown(name string) string {
	if len(name) > 200 {
		name = name[:200]
	}
	return fmt.Sprintf("%q", name)
}

// parseAlgorithm reads the algorithms for a kind of descriptor.
func parseAlgorithm(kind string, inner *node) (*algorithm, error) {
	short, ours := strings.CutPrefix(kind, descriptorSpace)
	encryption, validation, hash := inner.child("encryption"), inner.child("validation"), inner.child("hash")
	var keySize int
	var hmac *digest
	gcm := false
	switch {
	case !ours:
		return nil, fmt.Errorf("has a descriptor of the unknown kind %s", shown(kind))
	case short == "AuthenticatedEncryptorDescriptorDeserializer":
		keySize, gcm = namedCipher(algorithmName(encryption))
		hmac = namedHMAC(algorithmName(validation), "SHA256", "SHA512")
	case short == "ManagedAuthenticatedEncryptorDescriptorDeserializer":
		keySize = sizedAES(encryption)
		hmac = namedHMAC(shortTypeName(algorithmName(validation)), "SHA1", "SHA256", "SHA384", "SHA512")
	case short == "CngCbcAuthenticatedEncryptorDescriptorDeserializer":
		keySize = sizedAES(encryption)
		hmac = digestNamed(algorithmName(hash))
	case short == "CngGcmAuthenticatedEncryptorDescriptorDeserializer":
		keySize, gcm = sizedAES(encryption), true
	default:
		return nil, fmt.Errorf("has a descriptor of the unknown kind %s", shown(kind))
	}
	switch {
	case keySize == 0:
		return nil, fmt.Errorf("uses an unknown encryption algorithm %s", shown(algorithmName(encryption)))
	case gcm:
		hmac = nil
	case hmac == nil:
		return nil, errors.New("uses an unknown validation algorithm")
	}
	return newAlgorithm(keySize, hmac), nil
}

func algorithmName(n *node) string {
	if n == nil {
		return ""
	}
	name, _ := n.attr("algorithm")
	return name
}

// shortTypeName returns the last part of a .NET type's name.
func shortTypeName(qualified string) string {
	name := typeName(qualified)
	return name[strings.LastIndexByte(name, '.')+1:]
}

// namedCipher reads names such as AES_256_CBC. The size is 0 for others.
func namedCipher(name string) (keySize int, gcm bool) {
	switch name {
	case "AES_128_CBC":
		return 16, false
	case "AES_192_CBC":
		return 24, false
	case "AES_256_CBC":
		return 32, false
	case "AES_128_GCM":
		return 16, true
	case "AES_192_GCM":
		return 24, true
	case "AES_256_GCM":
		return 32, true
	}
	return 0, false
}

// sizedAES reads the size of an AES key, 0 for anything else.
func sizedAES(n *node) int {
	if n == nil || !strings.EqualFold(shortTypeName(algorithmName(n)), "AES") {
		return 0
	}
	switch bits, _ := n.attr("keyLength"); bits {
	case "128":
		return 16
	case "192":
		return 24
	case "256":
		return 32
	}
	return 0
}

func namedHMAC(name string, allowed ...string) *digest {
	for _, hash := range allowed {
		if name == "HMAC"+hash {
			return digestNamed(hash)
		}
	}
	return nil
}

// parseMasterKey reads the master key: standard base64 of any length. An empty
// one is refused, since everybody knows it.
func parseMasterKey(inner *node) ([]byte, error) {
	n := inner.child("masterKey")
	if n == nil {
		return nil, errors.New("has no master key")
	}
	master, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(n.text()), ""))
	if err != nil {
		return nil, errors.New("has a master key that is not base64")
	}
	if len(master) == 0 {
		return nil, errors.New("has an empty master key")
	}
	return master, nil
}

// openAtRest replaces every element below n that was protected at rest by the
// one that it protects.
func openAtRest(n *node) error {
	for i, c := range n.content {
		switch {
		case c.child == nil:
		case c.child.name == (xml.Name{Space: atRestNamespace, Local: "encryptedSecret"}):
			opened, err := openSecret(c.child)
			if err != nil {
				return err
			}
			n.content[i].child = opened
		default:
			if err := openAtRest(c.child); err != nil {
				return err
			}
		}
	}
	return nil
}

func openSecret(secret *node) (*node, error) {
	decryptor, _ := secret.attr("decryptorType")
	kind := typeName(decryptor)
	short, _ := strings.CutPrefix(kind, xmlEncryptionSpace)
	switch short {
	case "NullXmlDecryptor":
		if wrapper := secret.only(); wrapper != nil {
			if opened := wrapper.only(); opened != nil {
				return opened, nil
			}
		}
		return nil, errors.New("holds no single element in its null protection")
	case "EncryptedXmlDecryptor":
		return nil, errors.New("is protected with a certificate, and this ring has none to open it")
	case "DpapiXmlDecryptor":
		return nil, errors.New("is protected with Windows DPAPI and cannot be read on this machine; protect the ring in another way")
	case "DpapiNGXmlDecryptor":
		return nil, errors.New("is protected with Windows DPAPI-NG and cannot be read on this machine; protect the ring in another way")
	}
	return nil, fmt.Errorf("is protected with the unsupported %s", shown(kind))
}

// keyTemplate is a key as .NET 9 writes it.
const keyTemplate = `<key id="%s" version="1">
  <creationDate>%s</creationDate>
  <activationDate>%s</activationDate>
  <expirationDate>%s</expirationDate>
  <descriptor deserializerType="` + descriptorSpace + `AuthenticatedEncryptorDescriptorDeserializer, Microsoft.AspNetCore.DataProtection, Version=9.0.0.0, Culture=neutral, PublicKeyToken=adb9793829ddae60">
    <descriptor>
      <encryption algorithm="AES_256_CBC" />
      <validation algorithm="HMACSHA256" />
      <masterKey p4:requiresEncryption="true" xmlns:p4="` + atRestNamespace + `">
        <!-- Warning: the key below is in an unencrypted form. -->
        <value>%s</value>
      </masterKey>
    </descriptor>
  </descriptor>
</key>`

// masterKeySize is the size of a new master key.
const masterKeySize = 64

// newKeyXML writes a key of AES-256-CBC with HMAC-SHA256.
func newKeyXML(id KeyID, created, activates, expires time.Time, master []byte) []byte {
	return fmt.Appendf(nil, keyTemplate, id, formatDate(created), formatDate(activates), formatDate(expires),
		base64.StdEncoding.EncodeToString(master))
}
