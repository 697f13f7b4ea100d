package serve

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
)

func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		environ []string
		want    string // DIR stands for the data directory
	}{
		{nil, "DIR"},
		{[]string{"PURSER_DATABASE_MAIN=postgres://db/purser"}, "DIR/blobs"},
		{[]string{"PURSER_STORAGE_FILESYSTEM_PATH=/mnt/blobs"}, "DIR /mnt/blobs"},
		{[]string{"PURSER_STORAGE_S3_BUCKET=images"}, "DIR s3://images"},
		{[]string{"PURSER_STORAGE_S3_BUCKET=images", "PURSER_STORAGE_S3_PREFIX=a/b", "PURSER_DATABASE_MAIN=postgres://db/purser"}, "s3://images/a/b"},
	} {
		cfg := servetest.Config(t, tc.environ...)
		want := strings.ReplaceAll(tc.want, "DIR", cfg.DataDir)
		if got := strings.Join(places(cfg), " "); got != want {
			t.Errorf("%v: data in %q, want %q", tc.environ, got, want)
		}
	}
}

// TestAnnounceExternalURL: with http.external_url set, the text that the server prints at
// its start tells users to push to that URL's host.
func TestAnnounceExternalURL(t *testing.T) {
	t.Parallel()
	cfg := servetest.Config(t, "PURSER_HTTP_EXTERNAL_URL=https://registry.example.com")
	socks, err := listen(t.Context(), cfg.HTTP, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer socks.close()
	var out bytes.Buffer
	if err := announce(&out, cfg, socks, access{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"  registry  http://127.0.0.1:", "  external  https://registry.example.com\n", "docker push registry.example.com/alpine\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q isn't in\n%s", want, out.String())
		}
	}
}
