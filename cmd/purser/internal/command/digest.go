package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
)

// SplitDigest splits what a user writes for a manifest: REPOSITORY@DIGEST, or DIGEST alone; then
// `repository` is "". The digest may be short.
func SplitDigest(text string) (repository, digest string) {
	if repository, digest, ok := strings.Cut(text, "@"); ok {
		return repository, digest
	}
	return "", text
}

// WholeDigest returns the digest of a manifest of a repository, of which the user may have written the
// beginning alone; `what` names it in errors. `find` returns the manifests whose digests begin so. If
// there are several, the error lists them: a command then does nothing, and otherwise acts by the whole
// digest, so that a manifest that is pushed meanwhile can't be taken for the one that was found.
func WholeDigest(ctx context.Context, what, repository, text string, find func(context.Context, api.ShortDigestItem) (api.ShortManifests, error)) (d oci.Digest, err error) {
	begin, err := oci.ParseShortDigest(text)
	if err != nil {
		return d, Usagef("%s: %q isn't possible: %w", what, text, err)
	}
	if d, err := oci.ParseDigest(begin.String()); err == nil {
		return d, nil
	}
	in := api.ShortDigestItem{InRepository: api.InRepository{Repository: repository}, Beginning: begin.String()}
	found, err := find(ctx, in)
	if err != nil {
		return d, err
	}
	switch len(found.Manifests) {
	case 0:
		return d, Usagef("%s: no manifest of %s has a digest that begins with %s: give the whole digest", what, repository, begin)
	case 1:
		if !found.More {
			return found.Manifests[0].Digest, nil
		}
	}
	return d, &usageError{err: ambiguousDigest(what, repository, begin, found)}
}

func ambiguousDigest(what, repository string, begin oci.ShortDigest, found api.ShortManifests) error {
	rows := make([][]string, len(found.Manifests))
	for i, m := range found.Manifests {
		rows[i] = []string{m.Digest.String(), strings.Join(m.Tags, " "), manifestKind(m), Size(m.Size)}
	}
	return ambiguous(fmt.Sprintf("%s: several manifests of %s have a digest that begins with %s; give more of it", what, repository, begin),
		[]string{"DIGEST", "TAGS", "KIND", "SIZE"}, rows, found.More)
}

// ambiguous returns an error that lists what was perhaps meant.
func ambiguous(text string, header []string, rows [][]string, more bool) error {
	var list strings.Builder
	err := Table(&list, header, rows)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimRight(list.String(), "\n"), "\n")
	if more {
		lines = append(lines, "… and more")
	}
	return fmt.Errorf("%s:\n  %s", text, strings.Join(lines, "\n  "))
}

// Ambiguous returns a usage error that lists what a name was perhaps meant for.
func Ambiguous(text string, header []string, rows [][]string, more bool) error {
	return &usageError{err: ambiguous(text, header, rows, more)}
}

// manifestKind returns what a manifest is.
func manifestKind(m api.ShortManifest) string {
	switch {
	case m.IsManifestList:
		return "index"
	case m.ArtifactType == "" || strings.HasPrefix(m.ArtifactType, "application/vnd.oci.image.config.") || strings.HasPrefix(m.ArtifactType, "application/vnd.docker.container.image."):
		return "image"
	}
	return m.ArtifactType
}
