package distribution_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestUploadBelongsToItsRepository: a client begins an upload in one repository. The upload's
// URL must work on every replica from then on. If the client puts the path of another
// repository into the URL, the registry must answer 404.
func TestUploadBelongsToItsRepository(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	for _, query := range []string{"", "?digest-algorithm=sha512"} {
		for _, by := range []*registry{one, two} {
			at := one.StartUpload(t, "mine/app", query)
			stolen := strings.Replace(at, "mine/app", "other/app", 1)
			chunk := pattern(1, 100)
			for _, other := range []string{stolen, strings.Replace(at, "mine/app", "mine", 1), strings.Replace(at, "mine/app", "mine/app/x", 1)} {
				by.Do(t, "GET", other, "").Want(t, 404, oci.BlobUploadUnknown)
				by.Do(t, "PATCH", other, chunk).Want(t, 404, oci.BlobUploadUnknown)
				by.Do(t, "PUT", other+"?digest="+digest(chunk).String(), chunk).Want(t, 404, oci.BlobUploadUnknown)
				by.Do(t, "DELETE", other, "").Want(t, 404, oci.BlobUploadUnknown)
			}
			by.Do(t, "GET", at, "").Want(t, 204, "", "Location", at, "Range", "0-0")
			by.Do(t, "PATCH", at, chunk).Want(t, 202, "", "Location", at+".100", "Range", "0-99")
			by.Do(t, "PATCH", stolen, chunk).Want(t, 404, oci.BlobUploadUnknown)
			d := digest(chunk)
			if query != "" {
				d = digest512(chunk)
			}
			one.Do(t, "PUT", at+"?digest="+d.String(), "").Want(t, 201, "")
			at = one.StartUpload(t, "mine/app", query)
			by.Do(t, "DELETE", at, "").Want(t, 204, "")
		}
	}
	one.Do(t, "GET", "/v2/other/app/tags/list", "").Want(t, 404, oci.NameUnknown)
}

// TestUploadURLTellsNoRow: a client begins an upload. The id in the upload's URL must differ
// from the id of the upload's row, and the registry must answer 404 to a URL with the row's id.
func TestUploadURLTellsNoRow(t *testing.T) {
	t.Parallel()
	r := setup(t)
	at := r.StartUpload(t, "mine/app", "")
	name := at[strings.LastIndexByte(at, '/')+1:]
	if !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(name) {
		t.Errorf("the URL's last part is %q, not of the form of a UUID", name)
	}
	rows, err := r.DB.Pool.Query(t.Context(), "SELECT id FROM uploads")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		if id.String() == name {
			t.Errorf("the URL has the row's identifier %s", id)
		}
		r.Do(t, "GET", "/v2/mine/app/blobs/uploads/"+id.String(), "").Want(t, 404, oci.BlobUploadUnknown)
	}
}

// TestUploadSecret: eight goroutines ask at the same time for the secret from which the keys of
// upload ids are derived, before it exists. It must be created once, and all goroutines must
// get the same secret.
func TestUploadSecret(t *testing.T) {
	t.Parallel()
	r := replica(t, setup(t).DSN, pgtest.TempDir(t))
	secrets := make(chan string, 8)
	for range cap(secrets) {
		go func() {
			s, err := r.Catalog.UploadSecret(t.Context())
			if err != nil {
				t.Error(err)
			}
			secrets <- string(s)
		}()
	}
	first := <-secrets
	for range cap(secrets) - 1 {
		if s := <-secrets; s != first || len(s) != 32 {
			t.Errorf("secrets %x and %x", first, s)
		}
	}
	if _, err := r.DB.Pool.Exec(t.Context(), "UPDATE settings SET value = 'x' WHERE name = 'uploads_secret'"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Catalog.UploadSecret(t.Context()); err == nil || !strings.Contains(err.Error(), "uploads_secret") {
		t.Errorf("a damaged secret: %v", err)
	}
}
