package distribution

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

// uploadNames translates between the identifiers of uploads' rows and those in uploads'
// URLs. A row is made in advance, before its repository is known, and learns its
// repository when the first bytes are saved. Until then only the URL can bind the
// upload to a repository. Therefore the URL's identifier is the row's, encrypted with a
// key of the repository: under another repository's path it decrypts to an identifier
// that doesn't exist. The keys are derived from a secret in the database, which all
// replicas read.
type uploadNames struct {
	catalog *catalog.Catalog
	secret  atomic.Pointer[[]byte] // nil until it is read
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

// repositoryNames translates for one repository. An identifier is exactly one cipher
// block, so a client can't change it with a predictable effect.
type repositoryNames struct{ block cipher.Block }

// name returns the identifier in the URL for the upload id.
func (n repositoryNames) name(id uuid.UUID) (name uuid.UUID) {
	n.block.Encrypt(name[:], id[:])
	return name
}

// id returns the upload's identifier for the one in a URL.
func (n repositoryNames) id(name uuid.UUID) (id uuid.UUID) {
	n.block.Decrypt(id[:], name[:])
	return id
}
