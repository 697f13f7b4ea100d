package management

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// maxConfig is the size in bytes of the largest image configuration that is read from the
// store.
const maxConfig = 1 << 20

// largeManifest is the size in bytes from which manifests are described in turns, because that
// takes milliseconds of processor time: 0.1 s for one of 3 MB with 15,000 layers.
const largeManifest = 128 << 10

// addManifests binds the operations on manifests.
func (a *API) addManifests() {
	serve(a, api.GetManifest, a.getManifest)
	serve(a, api.FindImage, func(ctx context.Context, in *api.ImageItem) (*api.ImageManifests, error) {
		list, err := a.browser.ManifestsOfImage(ctx, in.Repository, in.Image)
		return &api.ImageManifests{Digests: append([]oci.Digest{}, list...)}, err
	})
	serve(a, api.FindShortDigest, a.findShortDigest)
	serve(a, api.ListReferrers, a.listReferrers)
	serve(a, api.ListUntagged, a.listUntagged)
	serve(a, api.DeleteManifest, func(ctx context.Context, in *api.ManifestDeletion) (*api.None, error) {
		options := overridingHolds(in.Override)
		if in.Untagged {
			options = append(options, catalog.OnlyUntagged)
		}
		return nil, a.catalog.DeleteManifest(ctx, in.Repository, in.Digest, options...)
	})
}

func (a *API) listUntagged(ctx context.Context, in *api.UntaggedQuery) (*api.UntaggedList, error) {
	var after oci.Digest
	if _, err := parseCursor(in.NextPage, "untagged", &after); err != nil {
		return nil, err
	}
	found, next, err := a.browser.UntaggedManifests(ctx, in.Repository, after, min(in.Limit, 100))
	if err != nil {
		return nil, err
	}
	out := &api.UntaggedList{Manifests: make([]api.UntaggedManifest, 0, len(found))}
	for _, m := range found {
		out.Manifests = append(out.Manifests, api.UntaggedManifest{
			Digest: m.Digest, IsManifestList: m.IsIndex, MediaType: m.MediaType, ArtifactType: m.ArtifactType, Platforms: m.Platforms,
			Size: m.Size, PushedAt: m.PushedAt, Index: m.Index, Subject: m.Subject,
		})
	}
	if next != (oci.Digest{}) {
		out.NextPage = cursor("untagged", next)
	}
	return out, nil
}

func (a *API) findShortDigest(ctx context.Context, in *api.ShortDigestItem) (*api.ShortManifests, error) {
	begin, err := oci.ParseShortDigest(in.Beginning)
	if err != nil {
		return nil, server.Refusal(http.StatusBadRequest, "%v", err)
	}
	list, more, err := a.browser.ManifestsByShortDigest(ctx, in.Repository, begin)
	out := api.NewShortManifests(list, more)
	return &out, err
}

func (a *API) getManifest(ctx context.Context, in *api.ManifestItem) (*api.DescribedManifest, error) {
	m, err := a.browser.DescribeManifest(ctx, in.Repository, in.Digest)
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
	sizes, err := a.browser.StoredSizes(ctx, m, parsed)
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
	return &out, nil
}

// newDescribedManifest describes a manifest by its row `m` in the table manifests and its
// parsed content. The description has the sizes of the stored blobs and manifests. Where the
// manifest declares another size, the description has the declared size too. For content that
// isn't stored here, it has only the declared size.
func newDescribedManifest(m browse.ManifestDetails, parsed *oci.Manifest, sizes map[oci.Digest]int64) api.DescribedManifest {
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
	out := api.DescribedManifest{
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
		child := api.ChildManifest{Digest: d.Digest, MediaType: d.MediaType, ArtifactType: d.ArtifactType}
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
	out.Config = &api.ImageConfig{Digest: parsed.Config.Digest, MediaType: parsed.Config.MediaType}
	out.Config.Size, out.Config.Declared = sizeOf(*parsed.Config)
	out.Layers = make([]api.Layer, 0, len(parsed.Layers))
	for i, d := range parsed.Layers {
		size, declared := sizeOf(d)
		out.Layers = append(out.Layers, api.Layer{
			Index: i, Size: size, Declared: declared, Digest: d.Digest, MediaType: d.MediaType, IsRemote: d.Foreign(), URLs: foreignURLs(d),
		})
	}
	return out
}

// sizedChildren limits how many manifests of an index are described with their total sizes.
const sizedChildren = 100

// addTotalSizes sets the total sizes of the first manifests that an index lists.
func (a *API) addTotalSizes(ctx context.Context, repository string, children []api.ChildManifest) error {
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
	found, err := a.browser.DescribeManifests(ctx, repository, digests)
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
func (a *API) describeImage(ctx context.Context, repository string, m *oci.Manifest, out *api.DescribedManifest) {
	var image builtImage
	if err := a.readConfig(ctx, repository, m.Config.Digest, maxConfig, &image); err != nil {
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

// readConfig reads a configuration of up to `most` bytes.
func (a *API) readConfig(ctx context.Context, repository string, d oci.Digest, most int64, image *builtImage) error {
	b, err := a.catalog.Blob(ctx, repository, d)
	if err != nil {
		return err
	}
	if b.Size > most {
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
	content, err := io.ReadAll(io.LimitReader(r, most))
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

func (a *API) listReferrers(ctx context.Context, in *api.ReferrerQuery) (*api.ReferrerList, error) {
	if err := isText("artifact_type", in.ArtifactType); err != nil {
		return nil, err
	}
	var after int64
	if _, err := parseCursor(in.NextPage, "referrer", &after); err != nil {
		return nil, err
	}
	if _, err := a.browser.RepositoryID(ctx, in.Repository); err != nil {
		return nil, err
	}
	found, more, err := a.catalog.Referrers(ctx, in.Repository, in.Digest, in.ArtifactType, after, min(in.Limit, 100))
	if err != nil {
		return nil, err
	}
	page, err := referrerPage(ctx, found, more)
	if err != nil {
		return nil, err
	}
	return page, a.addReferrerSizes(ctx, in.Repository, page.Referrers)
}

// addReferrerSizes sets the total sizes of a page of referrers.
func (a *API) addReferrerSizes(ctx context.Context, repository string, page []api.ListedReferrer) error {
	if len(page) == 0 {
		return nil
	}
	digests := make([]oci.Digest, len(page))
	for i, r := range page {
		digests[i] = r.Digest
	}
	found, err := a.browser.DescribeManifests(ctx, repository, digests)
	for _, m := range found {
		if i := slices.Index(digests, m.Digest); i >= 0 {
			page[i].TotalSize = &m.Size
		}
	}
	return err
}

// referrerPage returns the page that begins with the first of the referrers; `more` says that
// others follow them.
func referrerPage(ctx context.Context, found []catalog.Referrer, more bool) (*api.ReferrerList, error) {
	var size int64 // which the catalog bounds
	for _, r := range found {
		size += int64(len(r.Annotations))
	}
	if _, err := server.Observed(ctx).Lease.Take(ctx, 3*size); err != nil { // as read, decoded and in the answer
		return nil, err
	}
	out := &api.ReferrerList{Referrers: make([]api.ListedReferrer, 0, len(found))}
	for _, r := range found {
		l := api.ListedReferrer{Digest: r.Digest, MediaType: r.MediaType, ArtifactType: r.ArtifactType, Size: r.Size}
		if len(r.Annotations) > 0 {
			if err := json.Unmarshal(r.Annotations, &l.Annotations); err != nil {
				return nil, fmt.Errorf("reading the annotations of %s: %w", r.Digest, err)
			}
		}
		out.Referrers = append(out.Referrers, l)
	}
	if more {
		out.NextPage = cursor("referrer", found[len(found)-1].ID)
	}
	return out, nil
}

const (
	// maxListedConfig is a size in bytes: a list reads only configurations that aren't larger.
	maxListedConfig = 64 << 10
	// configTime is how long one list reads configurations, one after the other.
	configTime = 300 * time.Millisecond
	// knownPlatforms is how many configurations' platforms stay in memory. A configuration never changes.
	knownPlatforms = 20_000
)

// platformForm matches the platforms that a list shows.
var platformForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,32}/[A-Za-z0-9._-]{1,32}(/[A-Za-z0-9._-]{1,32})?$`)

// imageConfigs are the artifact types of images, which have a platform in their configuration.
var imageConfigs = []string{"", "application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"}

// addPlatforms sets the platforms of images in a list of tags. They are in the images' configurations, which
// are read from the store unless somebody has read them before. The platforms of images whose
// configuration can't be read within configTime stay unknown.
func (a *API) addPlatforms(ctx context.Context, repository string, tags []api.ListedTag) error {
	var images []oci.Digest
	for _, t := range tags {
		if !t.IsManifestList && slices.Contains(imageConfigs, t.ArtifactType) && !slices.Contains(images, t.ManifestDigest) {
			images = append(images, t.ManifestDigest)
		}
	}
	if len(images) == 0 {
		return nil
	}
	configs, err := a.browser.Configurations(ctx, repository, images)
	if err != nil {
		return err
	}
	platforms := a.platformsOf(ctx, repository, configs)
	for i := range tags {
		if text := platforms[configs[tags[i].ManifestDigest].Digest]; text != "" {
			tags[i].Platforms = []string{text}
		}
	}
	return nil
}

// platformsOf returns the platforms that configurations name, by the configurations' digests.
func (a *API) platformsOf(ctx context.Context, repository string, configs map[oci.Digest]browse.Configuration) map[oci.Digest]string {
	found := make(map[oci.Digest]string, len(configs))
	ctx, cancel := context.WithTimeout(ctx, configTime)
	defer cancel()
	for _, c := range configs {
		text, known := a.platforms.Get(c.Digest)
		if c.Platform != "" {
			text, known = c.Platform, true
		}
		if !known && ctx.Err() == nil {
			var image builtImage
			if a.readConfig(ctx, repository, c.Digest, maxListedConfig, &image) == nil {
				if text = image.platform.String(); !platformForm.MatchString(text) { // whoever pushed it may have written anything
					text = ""
				}
				a.platforms.Set(c.Digest, text)
			}
		}
		found[c.Digest] = text
	}
	return found
}
