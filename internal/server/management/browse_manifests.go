package management

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// maxConfig is the size in bytes of the largest image configuration that is read from the
// store.
const maxConfig = 1 << 20

// layer is a layer in Quay's format.
type layer struct {
	Index     int        `json:"index"`
	Size      int64      `json:"compressed_size" doc:"Stored size in bytes; of a remote layer, the size that the manifest declares"`
	Declared  *int64     `json:"declared_size,omitempty" doc:"The size that the manifest declares, if the stored size differs"`
	IsRemote  bool       `json:"is_remote" doc:"The layer is stored elsewhere, not in this registry"`
	URLs      []string   `json:"urls" doc:"Where a remote layer is stored; null for others"`
	Command   []string   `json:"command" doc:"The build step that made the layer, if the configuration has it"`
	Comment   *string    `json:"comment"`
	Author    *string    `json:"author"`
	Digest    oci.Digest `json:"blob_digest"`
	CreatedAt *string    `json:"created_datetime" doc:"The time that the configuration has"`
	MediaType string     `json:"media_type"`
}

// childManifest is a manifest that an index lists.
type childManifest struct {
	Digest       oci.Digest `json:"digest"`
	MediaType    string     `json:"media_type"`
	ArtifactType string     `json:"artifact_type,omitempty"`
	Size         int64      `json:"size" doc:"Stored size of the manifest alone, in bytes"`
	Declared     *int64     `json:"declared_size,omitempty" doc:"The size that the manifest declares, if the stored size differs"`
	Platform     string     `json:"platform,omitempty" example:"linux/amd64"`
	TotalSize    *int64     `json:"total_size,omitempty" doc:"Bytes of the manifest, its configuration and its layers; of an index, the sum of this over its first 1000 manifests. Missing: the repository doesn't have the manifest, or it comes after the first 100"`
}

// imageConfig is an image's configuration in answers.
type imageConfig struct {
	Digest    oci.Digest `json:"digest"`
	MediaType string     `json:"media_type"`
	Size      int64      `json:"size" doc:"Bytes that are stored"`
	Declared  *int64     `json:"declared_size,omitempty" doc:"The size that the manifest declares, if the stored size differs"`
	Platform  string     `json:"platform,omitempty" example:"linux/arm64/v8"`
	Created   string     `json:"created,omitempty" doc:"When the image was built, according to its configuration"`
	Author    string     `json:"author,omitempty"`
	Content   any        `json:"config,omitempty" doc:"Entrypoint, environment, labels and so on, as in the configuration"`
}

// describedManifest is a manifest in Quay's format, with Purser's additional members.
type describedManifest struct {
	Digest          oci.Digest `json:"digest"`
	IsManifestList  bool       `json:"is_manifest_list"`
	ManifestData    string     `json:"manifest_data" doc:"The manifest as it was pushed"`
	ConfigMediaType *string    `json:"config_media_type" doc:"Null for an index"`
	Layers          []layer    `json:"layers" doc:"Null for an index"`

	MediaType    string          `json:"media_type"`
	ArtifactType string          `json:"artifact_type,omitempty"`
	PushedAt     time.Time       `json:"pushed_at"`
	Size         int64           `json:"size" doc:"Bytes of the manifest, its configuration and its layers; of an index, the sum of this over all its manifests"`
	Config       *imageConfig    `json:"config,omitempty"`
	Manifests    []childManifest `json:"manifests,omitempty" nullable:"false" doc:"The manifests that an index lists"`
	Subject      *oci.Digest     `json:"subject,omitempty" doc:"The manifest's subject: the manifest that it refers to"`

	SubjectSize     *int64 `json:"subject_size,omitempty" doc:"Stored size of the subject; if the subject isn't in the repository, the size that this manifest declares"`
	SubjectDeclared *int64 `json:"subject_declared_size,omitempty" doc:"The subject's size that this manifest declares, if the stored size differs"`

	SubjectMissing bool `json:"subject_missing,omitempty" doc:"The repository doesn't have the subject"`

	Referrers    catalog.Count `json:"referrers" doc:"Number of manifests whose subject this is, counted up to 1000"`
	Tags         []string      `json:"tags" nullable:"false" doc:"Up to 100 tags that point to it"`
	TagCount     catalog.Count `json:"tags_count" doc:"Counted up to 1000"`
	Indexes      []oci.Digest  `json:"indexes,omitempty" nullable:"false" doc:"Up to 100 indexes that list it"`
	LastPulledAt *time.Time    `json:"last_pulled_at" doc:"Null: not pulled since pulls are counted, or the statistics can't be read now"`
	PullCount    *int64        `json:"pull_count" doc:"Null if last_pulled_at is"`
}

// largeManifest is the size in bytes from which manifests are described in turns, because that
// takes milliseconds of processor time: 0.1 s for one of 3 MB with 15,000 layers.
const largeManifest = 128 << 10

func (a *API) addManifest() {
	type input struct {
		Repository string     `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Digest     oci.Digest `path:"digest" doc:"Digest of the manifest"`
	}
	type output struct{ Body describedManifest }
	add(a, auth.Pull, huma.Operation{
		OperationID: "getRepoManifest", Method: http.MethodGet, Path: "/repository/{repository}/manifest/{digest}",
		Tags: []string{"manifest"}, Summary: "Describe a manifest", Errors: []int{http.StatusNotFound},
		Description: "The configuration of an image is read from the store, up to 1 MiB of it.",
	}, func(ctx context.Context, in *input) (*output, error) {
		m, err := a.catalog.DescribeManifest(ctx, in.Repository, in.Digest)
		if err != nil {
			return nil, err
		}
		if len(m.Payload) > largeManifest {
			done, err := a.turn(ctx)
			if err != nil {
				return nil, err
			}
			defer done()
		}
		parsed, err := oci.ParseManifest(m.MediaType, m.Payload)
		if err != nil { // its row is damaged: a push of it would have been refused
			return nil, fmt.Errorf("reading manifest %s: %w", in.Digest, err)
		}
		sizes, err := a.catalog.StoredSizes(ctx, m, parsed)
		if err != nil {
			return nil, err
		}
		out := newDescribedManifest(m, parsed, sizes)
		if parsed.Config != nil {
			a.describeImage(ctx, in.Repository, parsed, &out)
		}
		if err := a.addTotalSizes(ctx, in.Repository, out.Manifests); err != nil {
			return nil, err
		}
		if a.opt.Pulls != nil {
			p, err := a.opt.Pulls.Manifest(ctx, m.Repository, in.Digest)
			if err != nil {
				a.server.Warn(ctx, "describing a manifest without the statistics of its pulls", err)
			} else if p.Count > 0 || !p.Last.IsZero() {
				out.LastPulledAt, out.PullCount = optional(p.Last), &p.Count
			}
		}
		return &output{out}, nil
	})
}

// newDescribedManifest describes a manifest by its row `m` in the table manifests and its
// parsed content. The description has the sizes of the stored blobs and manifests. Where the
// manifest declares another size, the description has the declared size too. For content that
// isn't stored here, it has only the declared size.
func newDescribedManifest(m catalog.ManifestDetails, parsed *oci.Manifest, sizes map[oci.Digest]int64) describedManifest {
	sizeOf := func(d oci.Descriptor) (size int64, declared *int64) {
		size, stored := sizes[d.Digest]
		switch {
		case !stored || d.Foreign():
			return d.Size, nil
		case size != d.Size:
			declared = &d.Size
		}
		return size, declared
	}
	out := describedManifest{
		Digest: m.Digest, IsManifestList: parsed.Kind == oci.KindIndex, ManifestData: string(m.Payload),
		MediaType: m.MediaType, ArtifactType: parsed.ArtifactType, PushedAt: m.CreatedAt, Size: m.Size,
		Referrers: m.Referrers, Tags: m.Tags, TagCount: m.TagCount, Indexes: m.Indexes,
	}
	if parsed.Subject != nil {
		out.Subject = &parsed.Subject.Digest
		size, declared := sizeOf(*parsed.Subject)
		out.SubjectSize, out.SubjectDeclared = &size, declared
		_, stored := sizes[parsed.Subject.Digest]
		out.SubjectMissing = !stored
	}
	for _, d := range parsed.Manifests {
		child := childManifest{Digest: d.Digest, MediaType: d.MediaType, ArtifactType: d.ArtifactType}
		child.Size, child.Declared = sizeOf(d)
		if p := d.Platform; p != nil {
			child.Platform = platform{p.OS, p.Architecture, p.Variant}.String()
		}
		out.Manifests = append(out.Manifests, child)
	}
	if parsed.Config == nil {
		return out
	}
	out.ConfigMediaType = &parsed.Config.MediaType
	out.Config = &imageConfig{Digest: parsed.Config.Digest, MediaType: parsed.Config.MediaType}
	out.Config.Size, out.Config.Declared = sizeOf(*parsed.Config)
	out.Layers = make([]layer, 0, len(parsed.Layers))
	for i, d := range parsed.Layers {
		size, declared := sizeOf(d)
		out.Layers = append(out.Layers, layer{
			Index: i, Size: size, Declared: declared, Digest: d.Digest, MediaType: d.MediaType, IsRemote: d.Foreign(), URLs: foreignURLs(d),
		})
	}
	return out
}

// sizedChildren limits how many manifests of an index are described with their total sizes.
const sizedChildren = 100

// addTotalSizes sets the total sizes of the first manifests that an index lists.
func (a *API) addTotalSizes(ctx context.Context, repository string, children []childManifest) error {
	children = children[:min(len(children), sizedChildren)]
	digests := make([]oci.Digest, 0, len(children))
	for _, child := range children {
		if !slices.Contains(digests, child.Digest) {
			digests = append(digests, child.Digest)
		}
	}
	if len(digests) == 0 {
		return nil
	}
	found, err := a.catalog.DescribeManifests(ctx, repository, digests)
	for _, m := range found {
		for i := range children {
			if children[i].Digest == m.Digest {
				children[i].TotalSize = &m.Size
			}
		}
	}
	return err
}

// platform is a platform as image indexes and image configurations contain it. String returns
// it as os/architecture/variant.
type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant"`
}

func (p platform) String() string {
	switch {
	case p.OS == "" && p.Architecture == "":
		return ""
	case p.Variant != "":
		return p.OS + "/" + p.Architecture + "/" + p.Variant
	}
	return p.OS + "/" + p.Architecture
}

// builtImage has the members of an image's configuration that the API reads. The member Config
// is only passed on to clients; since whoever pushed the image chose its content, it may be
// JSON of any type.
type builtImage struct {
	platform
	Created string `json:"created"`
	Author  string `json:"author"`
	Config  any    `json:"config"`
	History []struct {
		Created   *string `json:"created"`
		CreatedBy string  `json:"created_by"`
		Comment   *string `json:"comment"`
		Author    *string `json:"author"`
		Empty     bool    `json:"empty_layer"`
	} `json:"history"`
}

// describeImage adds the members of the image's configuration, such as its platform and build
// steps, to `out`. If the configuration can't be read or decoded, or is longer than maxConfig,
// describeImage logs why and leaves `out` unchanged.
func (a *API) describeImage(ctx context.Context, repository string, m *oci.Manifest, out *describedManifest) {
	var image builtImage
	if err := a.readConfig(ctx, repository, m.Config.Digest, &image); err != nil {
		a.log.InfoContext(ctx, "describing a manifest without its configuration", "digest", out.Digest, "error", err)
		return
	}
	out.Config.Platform, out.Config.Created = image.platform.String(), image.Created
	out.Config.Author, out.Config.Content = image.Author, image.Config
	i := 0
	for _, h := range image.History {
		if h.Empty || i == len(out.Layers) {
			continue
		}
		l := &out.Layers[i]
		if l.CreatedAt, l.Comment, l.Author = h.Created, h.Comment, h.Author; h.CreatedBy != "" {
			l.Command = []string{h.CreatedBy}
		}
		i++
	}
}

func (a *API) readConfig(ctx context.Context, repository string, d oci.Digest, image *builtImage) error {
	b, err := a.catalog.Blob(ctx, repository, d)
	if err != nil {
		return err
	}
	if b.Size > maxConfig {
		return fmt.Errorf("it has %d bytes", b.Size)
	}
	if _, err := server.Observed(ctx).Lease.Take(ctx, 2*b.Size); err != nil { // the bytes, and what decoding makes of them
		return err
	}
	r, err := a.store.Open(ctx, b.StorageKey, 0, b.Size)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // only read
	content, err := io.ReadAll(io.LimitReader(r, maxConfig))
	if err != nil {
		return err
	}
	return json.Unmarshal(content, image)
}

// foreignURLs returns the URLs of a foreign layer, whose content is stored outside the
// registry. For other layers it returns nil.
func foreignURLs(d oci.Descriptor) []string {
	if !d.Foreign() {
		return nil
	}
	return d.URLs
}
