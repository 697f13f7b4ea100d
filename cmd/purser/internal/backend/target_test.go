package backend_test

import (
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/config"
)

// A bucket of backups at another service is reached with the keys of the environment, although blobs
// are in S3 with keys of their own.
func TestBackupTargetElsewhere(t *testing.T) {
	server := blobtest.S3Server(t)
	blobs := config.Storage{S3: config.S3{Endpoint: "http://127.0.0.1:1", Region: server.Region, Bucket: "images", AccessKey: "wrong", SecretKey: "wrong"}}
	list := func() error {
		t.Helper()
		target, err := backend.BackupTarget(t.Context(), "s3://"+server.Bucket+"/backups", blobs, backend.S3Access{Endpoint: server.Endpoint, PathStyle: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range target.Files(t.Context(), "") {
			return err
		}
		return nil
	}
	if _, err := backend.BackupTarget(t.Context(), "s3://backups", blobs, backend.S3Access{CAFile: "/ca.pem"}); err == nil {
		t.Error("a file of authorities without an endpoint is taken")
	}
	place, err := backend.BlobPlace("s3://blobs/new", blobs, backend.S3Access{Endpoint: "https://s3.example.com", CAFile: "/ca.pem"})
	if err != nil || place.S3.CAFile != "/ca.pem" {
		t.Errorf("the place for blobs is %+v, %v", place.S3, err)
	}
	if _, err := backend.BlobPlace("s3://blobs/new", blobs, backend.S3Access{CAFile: "/ca.pem"}); err == nil {
		t.Error("a file of authorities without an endpoint is taken for blobs")
	}
	if err := list(); err == nil {
		t.Fatal("the server takes wrong keys")
	}
	t.Setenv("AWS_ACCESS_KEY_ID", server.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", server.SecretKey)
	if err := list(); err != nil {
		t.Error(err)
	}
}
