package dataprotection

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
)

// A token is a header and a payload:
//
//	09 F0 C9 F0 | key id (16) | payload
//	payload with CBC: key modifier (16) | IV (16) | ciphertext | MAC
//	payload with GCM: key modifier (16) | nonce (12) | ciphertext | tag (16)
//
// The low four bits of the magic number are the format version, 0.
const (
	magicSize  = 4
	headerSize = magicSize + 16
)

var magic = [magicSize]byte{0x09, 0xf0, 0xc9, 0xf0}

// room is what a buffer keeps free before a token, so that the block before
// the IV, which mac overwrites, is as long as any digest's.
const room = maxDigestBlock - headerSize - modifierSize

// encryptor seals and opens the payloads of one key and one chain of purposes.
// It is safe for concurrent use.
type encryptor struct {
	alg  *algorithm
	keys *derivation
}

// newEncryptor derives from the master key for a label, which is the token's
// header followed by the purposes.
func newEncryptor(alg *algorithm, master, label []byte) *encryptor {
	return &encryptor{alg: alg, keys: newDerivation(master, label, alg.header, alg.derivedSize())}
}

// label is the associated data of a token (key id and purposes), used as the
// label of the key derivation.
func label(id KeyID, purposes []string) []byte {
	wire := id.wire()
	b := append(magic[:], wire[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(purposes)))
	for _, purpose := range purposes {
		b = binary.AppendUvarint(b, uint64(len(purpose)))
		b = append(b, purpose...)
	}
	return b
}

// randomSize is how many random bytes begin a payload: the key modifier and
// the IV or nonce.
func (e *encryptor) randomSize() int {
	if e.alg.hmac == nil {
		return modifierSize + nonceSize
	}
	return modifierSize + aes.BlockSize
}

// overhead bounds how much longer a payload is than its plaintext.
func (e *encryptor) overhead() int {
	if e.alg.hmac == nil {
		return modifierSize + nonceSize + tagSize
	}
	return modifierSize + aes.BlockSize + aes.BlockSize + e.alg.hmac.size
}

// open decrypts the payload at buf[at:] in place and returns the plaintext,
// a part of buf. At least maxDigestBlock - modifierSize bytes come before it;
// they and the payload are overwritten.
func (e *encryptor) open(buf []byte, at int) ([]byte, error) {
	var derived [maxDerived]byte
	defer clear(derived[:])
	if e.alg.hmac == nil {
		return e.openGCM(buf[at:], &derived)
	}
	size := e.alg.hmac.size
	iv, end := at+modifierSize, len(buf)-size
	if n := end - iv - aes.BlockSize; n < aes.BlockSize || n%aes.BlockSize != 0 {
		return nil, errSize
	}
	e.keys.derive(derived[:], buf[at:iv])
	key, macKey := derived[:e.alg.keySize], derived[e.alg.keySize:e.alg.derivedSize()]

	var mac [maxDigestBlock]byte
	if subtle.ConstantTimeCompare(e.alg.hmac.mac(mac[:0], macKey, buf[:end], iv), buf[end:]) != 1 {
		return nil, errForged
	}
	decryptCBC(must(aes.NewCipher(key)), buf[iv:end])
	return unpad(buf[iv+aes.BlockSize : end])
}

// decryptCBC decrypts in place what follows the IV. It goes backwards, so that
// each block's predecessor is still ciphertext.
func decryptCBC(block cipher.Block, b []byte) {
	for i := len(b) - aes.BlockSize; i > 0; i -= aes.BlockSize {
		current := b[i : i+aes.BlockSize]
		block.Decrypt(current, current)
		xorBlock(current, b[i-aes.BlockSize:i])
	}
}

// encryptCBC encrypts in place what follows the IV.
func encryptCBC(block cipher.Block, b []byte) {
	for i := aes.BlockSize; i < len(b); i += aes.BlockSize {
		current := b[i : i+aes.BlockSize]
		xorBlock(current, b[i-aes.BlockSize:i])
		block.Encrypt(current, current)
	}
}

func xorBlock(dst, with []byte) {
	le := binary.LittleEndian
	_, _ = dst[15], with[15]
	le.PutUint64(dst, le.Uint64(dst)^le.Uint64(with))
	le.PutUint64(dst[8:], le.Uint64(dst[8:])^le.Uint64(with[8:]))
}

// unpad removes PKCS #7 padding. The text is authentic, so its timing tells an
// attacker nothing.
func unpad(b []byte) ([]byte, error) {
	n := int(b[len(b)-1])
	if n == 0 || n > aes.BlockSize {
		return nil, errPadding
	}
	for _, c := range b[len(b)-n:] {
		if int(c) != n {
			return nil, errPadding
		}
	}
	return b[:len(b)-n], nil
}

func (e *encryptor) openGCM(payload []byte, derived *[maxDerived]byte) ([]byte, error) {
	if len(payload) < modifierSize+nonceSize+tagSize {
		return nil, errSize
	}
	e.keys.derive(derived[:], payload[:modifierSize])
	gcm := must(cipher.NewGCM(must(aes.NewCipher(derived[:e.alg.keySize]))))
	nonce, sealed := payload[modifierSize:modifierSize+nonceSize], payload[modifierSize+nonceSize:]
	plaintext, err := gcm.Open(sealed[:0], nonce, sealed, nil)
	if err != nil {
		return nil, errForged
	}
	return plaintext, nil
}

// seal appends plaintext to buf, whose last randomSize bytes are random, and
// turns both into a payload. What comes before is needed and overwritten as by
// open.
func (e *encryptor) seal(buf, plaintext []byte) []byte {
	var derived [maxDerived]byte
	defer clear(derived[:])
	at := len(buf) - e.randomSize()
	iv := at + modifierSize
	e.keys.derive(derived[:], buf[at:iv])
	block := must(aes.NewCipher(derived[:e.alg.keySize]))
	if e.alg.hmac == nil {
		return must(cipher.NewGCM(block)).Seal(buf, buf[iv:], plaintext, nil)
	}
	modifier := [modifierSize]byte(buf[at:iv])
	buf = append(buf, plaintext...)
	padding := aes.BlockSize - len(plaintext)%aes.BlockSize // PKCS #7
	for range padding {
		buf = append(buf, byte(padding))
	}
	encryptCBC(block, buf[iv:])
	buf = e.alg.hmac.mac(buf, derived[e.alg.keySize:e.alg.derivedSize()], buf, iv)
	copy(buf[at:], modifier[:])
	return buf
}
