package explain_test

import (
	"encoding/json"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// bundle is a catalog on a database that only this test uses, with its garbage collection.
type bundle struct{ catalogtest.Bundle }

func setup(t *testing.T) bundle {
	t.Helper()
	return bundle{catalogtest.Setup(t)}
}

// replica opens the catalog of the database dsn as another process would.
func replica(t *testing.T, dsn string) bundle {
	t.Helper()
	return bundle{catalogtest.Replica(t, dsn)}
}

func exact(n int64) catalog.Count { return catalog.Count{Rows: n, Exact: true} }

// nested puts three untagged manifests and returns their payloads: an image, an index of
// the image, and an outer index that lists the first index and whose subject is the image.
// The three form a cycle.
func nested(t *testing.T, b bundle, config oci.Digest) [][]byte {
	t.Helper()
	image := catalogtest.Numbered(t, 1, config)
	d := b.Put(t, "r", image)
	inner := catalogtest.Index(t, d)
	var outer map[string]any
	if err := json.Unmarshal(catalogtest.Index(t, b.Put(t, "r", inner)), &outer); err != nil {
		t.Fatal(err)
	}
	outer["artifactType"] = "application/x"
	outer["subject"] = map[string]any{"mediaType": oci.MediaTypeImageManifest, "digest": d.String(), "size": 1}
	payload, err := json.Marshal(outer)
	if err != nil {
		t.Fatal(err)
	}
	b.Put(t, "r", payload)
	return [][]byte{image, inner, payload}
}
