package blob

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// IdentityKey is the key of the object that holds a store's identity.
const IdentityKey = "purser-store.json"

// MaxIdentity is the largest accepted size of the identity object, in bytes.
const MaxIdentity = 4 << 10

// ErrDamagedIdentity says that the content of the identity object isn't valid.
var ErrDamagedIdentity = errors.New("the store's identity is damaged")

type identity struct {
	ID   string `json:"id"`
	Note string `json:"note"`
}

const identityNote = "This directory or bucket belongs to the Purser registry whose database knows this id. " +
	"Purser refuses to run without it: copy it along with everything else, and don't change or delete it. " +
	`"purser store show" tells more.`

// EncodeIdentity returns the content of the identity object for an id, which must be a UUID.
func EncodeIdentity(id string) ([]byte, error) {
	if _, err := uuid.Parse(id); err != nil {
		return nil, fmt.Errorf("store identity %q is not a UUID", id)
	}
	b, err := json.MarshalIndent(identity{id, identityNote}, "", "  ")
	return append(b, '\n'), err
}

// DecodeIdentity returns the id in the content of an identity object. It returns
// ErrDamagedIdentity if the content isn't valid.
func DecodeIdentity(b []byte) (string, error) {
	var i identity
	if err := json.Unmarshal(b, &i); err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrDamagedIdentity, IdentityKey, err)
	}
	id, err := uuid.Parse(i.ID)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %q is not a UUID", ErrDamagedIdentity, IdentityKey, i.ID)
	}
	return id.String(), nil
}
