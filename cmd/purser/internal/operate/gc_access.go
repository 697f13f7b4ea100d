package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/gc/explain"
	"github.com/purser-registry/purser/internal/oci"
)

// gcAccess is the access of commands to garbage collection. It has two implementations:
// gcOverAPI asks a running server over its API, and gcOnDatabase works on the database.
type gcAccess interface {
	status(ctx context.Context) (gc.GCStatus, error)
	blob(ctx context.Context, d oci.Digest) (explain.BlobExplanation, error)
	manifest(ctx context.Context, repository string, d oci.Digest) (explain.ManifestExplanation, error)
	// whole returns the digest of the manifest to which a tag points or, if `tag` is "", whose digest begins
	// as the user has written it.
	whole(ctx context.Context, repository, tag, written string) (oci.Digest, error)
	// retry makes all failed reviews due again, and returns their number.
	retry(ctx context.Context) (api.Retried, error)
}

// withGC runs `fn` over the API of the registry that PURSER_SERVER names. Without that
// variable, with --data-dir or --config, or if no registry answers at that URL, it runs
// `fn` on the configured database. Unlike other commands it doesn't try the default URL,
// since the registry there may have another database than the configured one.
func withGC(src *command.Source, cmd *cobra.Command, fn func(ctx context.Context, g gcAccess) error) error {
	named := func(entry string) bool {
		value, ok := strings.CutPrefix(entry, api.ServerVariable+"=")
		return ok && value != ""
	}
	byFlag := cmd.Flags().Changed("data-dir") || cmd.Flags().Changed("config")
	if slices.ContainsFunc(src.Environ, named) && !byFlag {
		c, err := src.Client(cmd)
		if err != nil {
			return err
		}
		err = fn(cmd.Context(), gcOverAPI{c})
		if _, away := errors.AsType[*api.UnreachableError](err); !away {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "No registry answers at %s: asking the database.\n", c.Name()) //nolint:errcheck // only a note
	}
	return withCollector(src, cmd, func(ctx context.Context, _ *config.Config, c *gc.Collector, metadata *db.DB, log *audit.Log) error {
		return fn(ctx, gcOnDatabase{c, log, browse.New(catalog.New(catalog.Options{DB: metadata, CacheOff: true}))})
	})
}

type gcOverAPI struct{ c *api.Client }

func (g gcOverAPI) status(ctx context.Context) (gc.GCStatus, error) {
	return api.GetGCStatus.Call(ctx, g.c, struct{}{})
}

func (g gcOverAPI) blob(ctx context.Context, d oci.Digest) (explain.BlobExplanation, error) {
	e, err := api.ExplainBlob.Call(ctx, g.c, api.BlobItem{Digest: d})
	return e.BlobExplanation, notThere(oci.BlobUnknown, err)
}

func (g gcOverAPI) manifest(ctx context.Context, repository string, d oci.Digest) (explain.ManifestExplanation, error) {
	e, err := api.ExplainManifest.Call(ctx, g.c, api.ManifestItem{InRepository: api.InRepository{Repository: repository}, Digest: d})
	return e.ManifestExplanation, notThere(oci.ManifestUnknown, err)
}

func (g gcOverAPI) whole(ctx context.Context, repository, tag, written string) (oci.Digest, error) {
	if tag == "" {
		d, err := command.WholeDigest(ctx, "DIGEST", repository, written, func(ctx context.Context, in api.ShortDigestItem) (api.ShortManifests, error) {
			return api.FindShortDigest.Call(ctx, g.c, in)
		})
		return d, notThere(oci.NameUnknown, err)
	}
	t, err := api.GetTag.Call(ctx, g.c, api.TagItem{InRepository: api.InRepository{Repository: repository}, Tag: tag})
	return t.ManifestDigest, notThere(oci.ManifestUnknown, err)
}

func (g gcOverAPI) retry(ctx context.Context) (api.Retried, error) {
	return api.RetryGC.Call(ctx, g.c, api.RetryInput{})
}

// notThere converts an API error with status 404 to an oci.Error with the given code,
// because the API doesn't send such codes. It returns other errors unchanged.
func notThere(code oci.Code, err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == 404 {
		return oci.Errorf(code, "%s", e.Detail)
	}
	return err
}

type gcOnDatabase struct {
	collector *gc.Collector
	log       *audit.Log
	browser   *browse.Browser
}

func (g gcOnDatabase) status(ctx context.Context) (gc.GCStatus, error) {
	return g.collector.GCStatus(ctx)
}

func (g gcOnDatabase) blob(ctx context.Context, d oci.Digest) (explain.BlobExplanation, error) {
	return explain.Blob(ctx, g.collector, d)
}

func (g gcOnDatabase) manifest(ctx context.Context, repository string, d oci.Digest) (explain.ManifestExplanation, error) {
	return explain.Manifest(ctx, g.collector, repository, d)
}

func (g gcOnDatabase) findShort(ctx context.Context, in api.ShortDigestItem) (found api.ShortManifests, err error) {
	begin, err := oci.ParseShortDigest(in.Beginning)
	if err != nil {
		return found, err
	}
	list, more, err := g.browser.ManifestsByShortDigest(ctx, in.Repository, begin)
	return api.NewShortManifests(list, more), err
}

func (g gcOnDatabase) whole(ctx context.Context, repository, tag, written string) (oci.Digest, error) {
	if tag == "" {
		return command.WholeDigest(ctx, "DIGEST", repository, written, g.findShort)
	}
	return explain.Tagged(ctx, g.collector, repository, tag)
}

func (g gcOnDatabase) retry(ctx context.Context) (n api.Retried, err error) {
	if err := g.log.Append(ctx, audit.Entry{Kind: audit.RetryGC}); err != nil {
		return n, err
	}
	if n.Manifests, err = g.collector.RetryFailed(ctx, gc.ReviewOfManifests); err != nil {
		return n, err
	}
	n.Blobs, err = g.collector.RetryFailed(ctx, gc.ReviewOfBlobs)
	return n, err
}
