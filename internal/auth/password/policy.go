package password

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MinLength and MaxLength bound the length of a password in bytes.
const (
	MinLength = 8
	MaxLength = 1024
)

// Check returns an error, whose text is for the client, unless the password may be used for the
// account of this name: it has MinLength to MaxLength bytes of valid UTF-8 without control
// characters, and isn't the account's name, in whatever case.
func Check(name, password string) error {
	switch {
	case len(password) < MinLength:
		return fmt.Errorf("the password is too short: it needs at least %d characters", MinLength)
	case len(password) > MaxLength:
		return fmt.Errorf("the password is too long: it may have at most %d bytes", MaxLength)
	case !utf8.ValidString(password):
		return errors.New("the password isn't valid UTF-8")
	case strings.ContainsFunc(password, unicode.IsControl):
		return errors.New("the password contains a control character, such as a line break or a tab")
	case strings.EqualFold(name, password):
		return errors.New("the password is the account's name; choose another one")
	}
	return nil
}

// readable has 32 characters that aren't mistaken for each other: no l, 1, o and 0.
const readable = "abcdefghijkmnpqrstuvwxyz23456789"

// generatedLength is the length of generated passwords. Each character has 5 random bits.
const generatedLength = 24

// Generate returns a random password of 24 letters and digits with 120 random bits.
func Generate() string {
	b := make([]byte, generatedLength)
	_, _ = rand.Read(b) // never fails
	for i := range b {
		b[i] = readable[b[i]%32] // 256 is a multiple of 32, so all characters are equally likely
	}
	return string(b)
}
