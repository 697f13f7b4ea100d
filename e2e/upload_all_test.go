//go:build all

package e2e

import (
	"io"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestUploadStreamedWithoutLength(t *testing.T) {
	begin(t)
	r := startRegistry(t, options{})
	ctx, content := t.Context(), randomBytes(3<<20)
	u, err := r.API().startUpload(ctx, "stream/app")
	if err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	go func() {
		_, err := writer.Write(content)
		writer.CloseWithError(err)
	}()
	res, err := r.API().do(ctx, request{method: "PATCH", path: u.location, stream: reader, want: 202,
		header: map[string]string{"Content-Type": "application/octet-stream"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := u.follow(res); err != nil {
		t.Fatal(err)
	}
	want := descriptor(v1.MediaTypeImageLayer, content)
	if err := r.API().finish(ctx, u, nil, want.Digest); err != nil {
		t.Fatal(err)
	}
	if err := r.API().pullBlob(ctx, "stream/app", want); err != nil {
		t.Error(err)
	}
}
