package ipsec

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"myelin/cluster"
)

// algorithm is the only one: AES in Galois/Counter Mode in ESP (RFC 4106).
const algorithm = "rfc4106(gcm(aes))"

// saltSize is the salt of a nonce in bytes, which follows the key (RFC 4106, section 8.1).
const saltSize = 4

// secret is the key that all nodes of the cluster share. States have keys that are derived from it.
type secret struct {
	ID  int    // 1 to 15
	Key []byte // with the salt: 20, 28 or 36 bytes
	ICV int    // length of the authentication tag in bits: 64, 96 or 128
}

// equal reports whether two secrets are the same, with another identifier or not.
func (s *secret) equal(o *secret) bool {
	return s.ICV == o.ICV && subtle.ConstantTimeCompare(s.Key, o.Key) == 1
}

// readSecret reads a file in the format of Cilium's Secret cilium-ipsec-keys: "ID+ rfc4106(gcm(aes)) KEY ICV". No error
// has a part of the key in it.
func readSecret(path string) (*secret, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key of IPsec: %w", err)
	}
	s, err := parseSecret(string(data))
	if err != nil {
		return nil, fmt.Errorf("key of IPsec, file %s: %w", path, err)
	}
	return s, nil
}

func parseSecret(text string) (*secret, error) {
	fields := strings.Fields(text)
	if strings.Count(strings.TrimSpace(text), "\n") > 0 {
		return nil, errors.New("it has more than one line: one key is for all nodes")
	}
	if len(fields) != 4 {
		return nil, fmt.Errorf("it has %d fields, not 4: ID+ %s KEY ICV", len(fields), algorithm)
	}
	s := &secret{}
	var err error
	if s.ID, err = strconv.Atoi(strings.TrimSuffix(fields[0], "+")); err != nil || s.ID < cluster.MinIPsecKey ||
		s.ID > cluster.MaxIPsecKey {
		return nil, fmt.Errorf("field 1: the identifier of the key must be %d to %d, which may be followed by +",
			cluster.MinIPsecKey, cluster.MaxIPsecKey)
	}
	if fields[1] != algorithm {
		return nil, fmt.Errorf("field 2: the algorithm must be %s", algorithm)
	}
	if s.Key, err = hex.DecodeString(strings.TrimPrefix(fields[2], "0x")); err != nil {
		return nil, errors.New("field 3: the key must be in hexadecimal")
	}
	switch len(s.Key) - saltSize {
	case 16, 24, 32:
	default:
		return nil, fmt.Errorf("field 3: the key has %d bytes, not 20, 28 or 36: AES's and %d of salt", len(s.Key),
			saltSize)
	}
	s.ICV, err = strconv.Atoi(fields[3])
	if err != nil || s.ICV != 64 && s.ICV != 96 && s.ICV != 128 {
		return nil, errors.New("field 4: the length of the authentication tag must be 64, 96 or 128 bits")
	}
	return s, nil
}

// way is one direction between two nodes, for which there is one state on each of them.
type way struct {
	From, To           netip.Addr // of the outer header
	FromEpoch, ToEpoch string     // of the nodes
}

// back is the other direction.
func (w way) back() way { return way{w.To, w.From, w.ToEpoch, w.FromEpoch} }

// keys are what the states of a way have.
type keys struct {
	SPI uint32
	Key []byte // with the salt
	ICV int    // bits
}

// minSPI: lower ones are reserved (RFC 4303, section 2.1).
const minSPI = 256

// derive computes the keys of a way by HKDF (RFC 5869). Both nodes get the same, and nodes that are not the way's get
// others. The epochs make it another key after each boot of one of the nodes, as a nonce of GCM must not be used twice
// with a key. The SPI is derived, too: XFRM finds states that receive by destination and SPI, without the source.
func (s *secret) derive(w way) (keys, error) {
	from, to := w.From.As16(), w.To.As16()
	info := "myelin ipsec 1\x00" + string(from[:]) + string(to[:]) + w.FromEpoch + "\x00" + w.ToEpoch + "\x00" +
		string(rune(s.ID))
	data, err := hkdf.Key(sha256.New, s.Key, nil, info, len(s.Key)+4)
	if err != nil {
		return keys{}, fmt.Errorf("derive key: %w", err)
	}
	spi := binary.BigEndian.Uint32(data[len(s.Key):])
	if spi < minSPI {
		spi += minSPI
	}
	return keys{SPI: spi, Key: data[:len(s.Key)], ICV: s.ICV}, nil
}

// fingerprint identifies a key without telling it.
func (k keys) fingerprint() string {
	sum := sha256.Sum256(append([]byte("myelin ipsec fingerprint\x00"), k.Key...))
	return hex.EncodeToString(sum[:16])
}
