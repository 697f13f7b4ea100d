package server

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
)

// uploadNames translates between the identifiers of uploads' rows and those in
// uploads' URLs. Rows are made ahead, before anybody knows their repository, and
// learn it when the first bytes are saved; until then only the URL can say whose
// the upload is. So the identifier in the URL is the row's, encrypted by a key of
// the repository: under another repository it decrypts to an upload that nobody
// has. The keys follow from a secret in the database, which every replica reads.
type uploadNames struct {
	catalog *catalog.Catalog
	secret  atomic.Pointer[[]byte] // nil until it was read
}

// of returns the translation for a repository.
func (n *uploadNames) of(ctx context.Context, path string) (repositoryNames, error) {
	secret := n.secret.Load()
	if secret == nil {
		read, err := n.catalog.UploadSecret(ctx)
		if err != nil {
			return repositoryNames{}, err
		}
		secret = &read
		n.secret.Store(secret)
	}
	mac := hmac.New(sha256.New, *secret)
	mac.Write([]byte(path))
	block, err := aes.NewCipher(mac.Sum(nil))
	return repositoryNames{block}, err
}

// repositoryNames translates for one repository. An identifier is one block, so
// that nothing can be changed in it with a known effect.
type repositoryNames struct{ block cipher.Block }

// name returns what stands in the URL of the upload id.
func (n repositoryNames) name(id uuid.UUID) (name uuid.UUID) {
	n.block.Encrypt(name[:], id[:])
	return name
}

// id returns the upload of a URL.
func (n repositoryNames) id(name uuid.UUID) (id uuid.UUID) {
	n.block.Decrypt(id[:], name[:])
	return id
}
