package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The headers of the Standard Webhooks specification, version 1.0.0.
const (
	headerID        = "webhook-id"
	headerTimestamp = "webhook-timestamp" // of the attempt, in Unix seconds
	headerSignature = "webhook-signature"
)

const (
	secretPrefix            = "whsec_"
	minKey, maxKey, maxText = 24, 64, 512 // bytes; the first two are the specification's
)

// CheckSecret returns what is wrong with Options.Secret, nil if nothing is.
func CheckSecret(secret string) error {
	_, err := signer(secret)
	return err
}

// signer returns a function that signs notices with the secret; nil if there is no secret.
// Only this function has the key, so that printing a Sender can't reveal it.
func signer(secret string) (func(id string, at time.Time, body string) string, error) {
	if secret == "" {
		return nil, nil
	}
	key, err := parseSecret(secret)
	if err != nil {
		return nil, err
	}
	return func(id string, at time.Time, body string) string {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "." + body))
		return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}, nil
}

// parseSecret returns the key that a secret stands for. Its errors don't repeat the secret.
func parseSecret(secret string) ([]byte, error) {
	if strings.TrimSpace(secret) != secret {
		return nil, errors.New("it begins or ends with white space; remove it")
	}
	encoded, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok {
		if len(secret) < minKey || len(secret) > maxText {
			return nil, fmt.Errorf("it has %d bytes; use from %d to %d, or %s and the output of \"openssl rand -base64 32\"",
				len(secret), minKey, maxText, secretPrefix)
		}
		return []byte(secret), nil
	}
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") {
		return nil, fmt.Errorf("what follows %s isn't base64; use the output of \"openssl rand -base64 32\"", secretPrefix)
	}
	if len(key) < minKey || len(key) > maxKey {
		return nil, fmt.Errorf("what follows %s stands for %d bytes; use from %d to %d", secretPrefix, len(key), minKey, maxKey)
	}
	return key, nil
}
