package distribution

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// maxTags limits the tags that one push may set.
const maxTags = 100

// getManifest answers GET and HEAD of a manifest by tag or digest (OCI specification, "Pulling
// manifests"). The answer 200 to a HEAD by digest is a promise: garbage collection doesn't
// delete the manifest during the review delay, so that the client can, for example, push an
// image index that lists the manifest.
func (a *API) getManifest(c *call) error {
	m, err := a.findManifest(c)
	if err != nil {
		return err
	}
	if c.r.Method == http.MethodGet {
		if err := c.hold(len(m.Payload)); err != nil {
			return err
		}
	}
	digest := m.Digest.String()
	h := c.Header()
	h["Docker-Content-Digest"] = []string{digest}
	h["Etag"] = []string{`"` + digest + `"`}
	// A client that has its answer has used the manifest, so the use is recorded before. A request
	// that is answered by 304 is a use, but no pull: the client has the manifest already.
	unchanged := noneMatch(c.r, digest)
	a.recordPull(c, m, c.r.Method == http.MethodGet && !unchanged)
	if unchanged {
		c.WriteHeader(http.StatusNotModified)
	} else {
		c.body(http.StatusOK, m.MediaType, m.Payload)
	}
	return nil
}

func (a *API) findManifest(c *call) (*catalog.Manifest, error) {
	ctx := c.r.Context()
	if !strings.Contains(c.ref, ":") {
		// No tag with an invalid name exists.
		if err := oci.ValidateTag(c.ref); err != nil {
			return nil, oci.Errorf(oci.ManifestUnknown, "%v", err).WithDetail(map[string]string{"tag": c.ref})
		}
		return a.catalog.ManifestByTag(ctx, c.name, c.ref)
	}
	d, err := c.digest()
	if err != nil {
		return nil, err
	}
	if c.r.Method == http.MethodHead {
		return a.catalog.PromiseManifestExists(ctx, c.name, d)
	}
	return a.catalog.ManifestByDigest(ctx, c.name, d)
}

// noneMatch says whether the request's header If-None-Match contains the manifest's digest or
// "*". If so, the client has the manifest already, and needs only the status 304.
func noneMatch(r *http.Request, digest string) bool {
	for _, v := range r.Header["If-None-Match"] {
		for tag := range strings.SplitSeq(v, ",") {
			tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
			if tag == "*" || strings.Trim(tag, `"`) == digest {
				return true
			}
		}
	}
	return false
}

// body writes an answer. For HEAD it writes the headers only.
func (c *call) body(status int, contentType string, content []byte) {
	h := c.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(len(content))}
	c.WriteHeader(status)
	if c.r.Method != http.MethodHead {
		c.Write(content) //nolint:errcheck // the client is gone, and knows
	}
}

// putManifest stores a manifest under a tag or under its digest (OCI specification, "Pushing
// Manifests"). If the client pushes by digest, the query may name tags that are to point to the
// manifest.
func (a *API) putManifest(c *call) error {
	payload, err := a.readManifest(c)
	if err != nil {
		return err
	}
	done, err := a.enterHeavy(c, len(payload))
	if err != nil {
		return err
	}
	defer done()
	p := catalog.NewManifest{Repository: c.name, Payload: payload, KeepTags: !a.server.MayOverwrite(c.r.Context(), c.name)}
	if p.Digest, p.Tags, err = c.manifestTarget(payload); err != nil {
		return err
	}
	if p.Condition = condition(c.r); !strings.Contains(c.ref, ":") {
		p.Condition.Tag = c.ref
	}
	if p.Manifest, err = oci.ParseManifest(c.r.Header.Get("Content-Type"), payload); err != nil {
		return err
	}
	ignored, err := a.catalog.PushManifest(c.r.Context(), p)
	if err != nil {
		return err
	}
	h := c.Header()
	for _, text := range ignored {
		h.Add("Warning", "299 - "+strconv.QuoteToASCII(text))
	}
	if p.Manifest.Subject != nil {
		h.Set("OCI-Subject", p.Manifest.Subject.Digest.String())
	}
	if len(p.Tags) > 0 && strings.Contains(c.ref, ":") {
		h.Set("OCI-Tag", strings.Join(p.Tags, ", "))
	}
	h.Set("Docker-Content-Digest", p.Digest.String())
	h.Set("ETag", `"`+p.Digest.String()+`"`)
	c.created("/v2/" + c.name + "/manifests/" + p.Digest.String())
	return nil
}

// created answers with status 201 and no body. `path` is where the client can get the resource
// that it has created.
func (c *call) created(path string) {
	h := c.Header()
	h.Set("Location", server.Observed(c.r.Context()).Base+path)
	h.Set("Content-Length", "0")
	c.WriteHeader(http.StatusCreated)
}

func (a *API) readManifest(c *call) ([]byte, error) {
	tooLarge := oci.Errorf(oci.SizeInvalid, "a manifest may have at most %d bytes", oci.MaxManifestSize).
		WithStatus(http.StatusRequestEntityTooLarge)
	if c.r.ContentLength > oci.MaxManifestSize {
		return nil, tooLarge
	}
	in := a.server.Body(c.ResponseWriter, c.r)
	b := in.Hold(oci.MaxManifestSize+1, manifestFactor)
	if err := in.LostError(); err != nil {
		return nil, err
	}
	if len(b) > oci.MaxManifestSize {
		return nil, tooLarge
	}
	return b, nil
}

// manifestTarget returns the digest under which the pushed manifest is to be stored, and the
// tags that the push sets. It returns an error if the path has a digest that isn't the
// payload's.
func (c *call) manifestTarget(payload []byte) (d oci.Digest, tags []string, err error) {
	extra := distinctTags(c.r.URL.Query()["tag"])
	if !strings.Contains(c.ref, ":") {
		if len(extra) > 0 {
			return d, nil, oci.Errorf(oci.Unsupported, "the tag parameter is for pushes by digest: put the tags there, or push to one tag").
				WithStatus(http.StatusBadRequest)
		}
		if err := server.CheckTag(c.ref); err != nil {
			return d, nil, err
		}
		return oci.Compute(oci.SHA256, payload), []string{c.ref}, nil
	}
	if d, err = c.digest(); err != nil {
		return d, nil, err
	}
	if actual := oci.Compute(d.Algorithm(), payload); actual != d {
		return d, nil, digestMismatch(d, actual)
	}
	if len(extra) > maxTags {
		return d, nil, oci.Errorf(oci.Unsupported, "%d tags in one request: at most %d are possible", len(extra), maxTags).
			WithStatus(http.StatusRequestURITooLong)
	}
	for _, t := range extra {
		if err := server.CheckTag(t); err != nil {
			return d, nil, err
		}
	}
	return d, extra, nil
}

// distinctTags removes repeated tags and keeps their order.
func distinctTags(tags []string) []string {
	seen := make(map[string]bool, len(tags))
	return slices.DeleteFunc(tags, func(tag string) bool {
		again := seen[tag]
		seen[tag] = true
		return again
	})
}

func digestMismatch(want, got oci.Digest) error {
	return oci.Errorf(oci.DigestInvalid, "the content's digest is %s, not %s", got, want).
		WithDetail(map[string]string{"expected": want.String(), "actual": got.String()})
}

// deleteManifest answers DELETE (OCI specification, "Content Management"): it deletes a tag if
// the path ends with a tag, and a manifest with all its tags if the path ends with a digest. The
// query parameter override_holds=true, an extension, deletes what a reporter holds.
func (a *API) deleteManifest(c *call) error {
	options, err := overridingHolds(c.r)
	if err != nil {
		return err
	}
	if strings.Contains(c.ref, ":") {
		d, err := c.digest()
		if err != nil {
			return err
		}
		if err := matches(condition(c.r), d); err != nil {
			return err
		}
		if err := a.catalog.DeleteManifest(c.r.Context(), c.name, d, options...); err != nil {
			return err
		}
	} else {
		if err := server.CheckTag(c.ref); err != nil {
			return err
		}
		condition := condition(c.r)
		condition.Tag = c.ref
		if err := a.catalog.DeleteTagIf(c.r.Context(), c.name, c.ref, condition, options...); err != nil {
			return err
		}
	}
	c.accepted()
	return nil
}

// overridingHolds returns the option that deletes what a reporter holds, if the request asks for
// it.
func overridingHolds(r *http.Request) ([]catalog.TagOption, error) {
	switch value := r.URL.Query().Get("override_holds"); value {
	case "", "false":
		return nil, nil
	case "true":
		return []catalog.TagOption{catalog.OverrideHolds}, nil
	default:
		return nil, server.Refusal(http.StatusBadRequest, "override_holds is %.40q and should be true or false", value)
	}
}

// accepted answers 202 without a body.
func (c *call) accepted() {
	c.Header().Set("Content-Length", "0")
	c.WriteHeader(http.StatusAccepted)
}
