package dataprotection

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
)

// digest is the hash of the HMAC that authenticates a CBC token.
type digest struct {
	name  string
	size  int // of its output, and of the MAC key
	block int // of its input
}

var digests = []digest{
	{"SHA1", sha1.Size, sha1.BlockSize},
	{"SHA256", sha256.Size, sha256.BlockSize},
	{"SHA384", sha512.Size384, sha512.BlockSize},
	{"SHA512", sha512.Size, sha512.BlockSize},
}

// sum appends the hash of message to dst. A switch, not a func value: this way
// the compiler sees that neither argument is kept.
func (d *digest) sum(dst, message []byte) []byte {
	switch d.size {
	case sha256.Size:
		s := sha256.Sum256(message)
		return append(dst, s[:]...)
	case sha512.Size:
		s := sha512.Sum512(message)
		return append(dst, s[:]...)
	case sha512.Size384:
		s := sha512.Sum384(message)
		return append(dst, s[:]...)
	default:
		s := sha1.Sum(message)
		return append(dst, s[:]...)
	}
}

func digestNamed(name string) *digest {
	for i := range digests {
		if digests[i].name == name {
			return &digests[i]
		}
	}
	return nil
}

const (
	// maxDigestBlock is the largest input block of a digest.
	maxDigestBlock = sha512.BlockSize
	// maxDerived is the largest amount of key material that a token needs:
	// AES-256 with HMAC-SHA512.
	maxDerived = 32 + sha512.Size

	modifierSize = 16
	nonceSize    = 12
	tagSize      = 16
)

// algorithm is how the tokens of a key are encrypted and authenticated:
// AES-CBC with an HMAC, or AES-GCM when hmac is nil.
type algorithm struct {
	keySize int // of AES, in bytes
	hmac    *digest
	header  []byte // context header: tells algorithms apart in the derivation
}

// derivedSize is the amount of key material that a token needs.
func (a *algorithm) derivedSize() int {
	if a.hmac == nil {
		return a.keySize
	}
	return a.keySize + a.hmac.size
}

func newAlgorithm(keySize int, hmac *digest) *algorithm {
	a := &algorithm{keySize: keySize, hmac: hmac}
	var derived [maxDerived]byte
	// All of the key derivation's inputs are empty here, so the header depends
	// on the algorithms alone.
	newDerivation(nil, nil, nil, a.derivedSize()).derive(derived[:], nil)
	if hmac == nil {
		a.header = gcmHeader(derived[:keySize])
	} else {
		a.header = cbcHeader(derived[:keySize], derived[keySize:a.derivedSize()], hmac)
	}
	return a
}

// cbcHeader proves the algorithms by what they make of an empty message.
func cbcHeader(key, macKey []byte, hmac *digest) []byte {
	h := []byte{0, 0}
	for _, n := range []int{len(key), aes.BlockSize, len(macKey), hmac.size} {
		h = binary.BigEndian.AppendUint32(h, uint32(n))
	}
	block := must(aes.NewCipher(key))
	var padded, iv [aes.BlockSize]byte
	for i := range padded {
		padded[i] = aes.BlockSize
	}
	cipher.NewCBCEncrypter(block, iv[:]).CryptBlocks(padded[:], padded[:])
	h = append(h, padded[:]...)
	buf := make([]byte, maxDigestBlock)
	return hmac.mac(h, macKey, buf, maxDigestBlock)
}

func gcmHeader(key []byte) []byte {
	h := []byte{0, 1}
	for _, n := range []int{len(key), nonceSize, aes.BlockSize, tagSize} {
		h = binary.BigEndian.AppendUint32(h, uint32(n))
	}
	gcm := must(cipher.NewGCM(must(aes.NewCipher(key))))
	return gcm.Seal(h, make([]byte, nonceSize), nil, nil)
}

// mac appends the HMAC (FIPS 198-1) of buf[from:] to dst. The block of buf
// before from is overwritten: the padded key goes there, so that the hash runs
// over contiguous memory. The key is no longer than a block.
func (d *digest) mac(dst, key, buf []byte, from int) []byte {
	block := buf[from-d.block : from]
	pad(block, key, 0x36)
	var outer [maxDigestBlock + sha512.Size]byte
	pad(outer[:d.block], key, 0x5c)
	inner := d.sum(outer[d.block:d.block], buf[from-d.block:])
	clear(block)
	dst = d.sum(dst, outer[:d.block+len(inner)])
	clear(outer[:])
	return dst
}

func pad(block, key []byte, with byte) {
	n := copy(block, key)
	clear(block[n:])
	for i := range block {
		block[i] ^= with
	}
}

// must is for AES with a key of a size that was chosen here.
func must[T any](v T, err error) T {
	if err != nil {
		panic("dataprotection: " + err.Error())
	}
	return v
}
