package distribution

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
)

// uploadNames translates between the id of an upload's row in the table uploads and the id in
// the upload's URL. A row is made in advance, and gets its repository only when the first bytes
// are saved. Until then only the URL can bind the upload to a repository. Therefore the id in
// the URL is the row's id, encrypted with a key that belongs to the repository: to its path and to
// its home, the ids of its rows. If a client puts this id into a URL of another repository, or if
// another repository has got the path, the id is decrypted with another key, and the result is an id
// that no row has. The keys are derived from a secret in the database, so all replicas have the same
// keys.
type uploadNames struct {
	catalog *catalog.Catalog
	secret  atomic.Pointer[[]byte] // nil until it is read
}

// of returns the translation of ids for the repository that has the given path and home when an
// upload begins. On its first call it reads the secret from the database.
func (n *uploadNames) of(ctx context.Context, path string, home catalog.Home) (repositoryNames, error) {
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
	if home != (catalog.Home{}) {
		fmt.Fprintf(mac, " %d %d", home.Namespace, home.Repository) //nolint:errcheck // it never fails
	}
	block, err := aes.NewCipher(mac.Sum(nil))
	return repositoryNames{block}, err
}

// repositoryNames translates upload ids for one repository. An id is exactly one AES block.
// Therefore a client that changes some bits of an id in a URL gets an id that it can't predict.
type repositoryNames struct{ block cipher.Block }

// name encrypts the id of an upload's row. The result is the id in the upload's URL.
func (n repositoryNames) name(id uuid.UUID) (name uuid.UUID) {
	n.block.Encrypt(name[:], id[:])
	return name
}

// id decrypts the id in an upload's URL. The result is the id of the upload's row.
func (n repositoryNames) id(name uuid.UUID) (id uuid.UUID) {
	n.block.Decrypt(id[:], name[:])
	return id
}
