package distribution_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"

	"github.com/purser-registry/purser/internal/oci"
)

// TestPushManifest tests "Pushing Manifests" of the OCI Distribution Specification. A client
// pushes a manifest of every accepted media type, by tag and by digest, and must read back the
// same bytes.
func TestPushManifest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	config, layer := r.Push(t, "a/b", "{}"), r.Push(t, "a/b", "layer")
	child := r.Put(t, "a/b", "child", image(t, config, []oci.Digest{layer, layer}, nil))
	list := []any{descriptor(oci.MediaTypeImageManifest, child, 1)}
	plain := object{"schemaVersion": 2, "config": descriptor(servertest.ConfigType, config, 2), "layers": []any{}}
	with := func(mediaType string, more object) object {
		m := object{"schemaVersion": 2, "mediaType": mediaType}
		for k, v := range more {
			m[k] = v
		}
		return m
	}
	for name, c := range map[string]struct {
		sent, want string // content types
		manifest   object
	}{
		"image":             {oci.MediaTypeImageManifest, oci.MediaTypeImageManifest, with(oci.MediaTypeImageManifest, plain)},
		"index":             {oci.MediaTypeImageIndex, oci.MediaTypeImageIndex, with(oci.MediaTypeImageIndex, object{"manifests": list})},
		"docker":            {oci.MediaTypeDockerManifest, oci.MediaTypeDockerManifest, with(oci.MediaTypeDockerManifest, plain)},
		"docker list":       {oci.MediaTypeDockerManifestList, oci.MediaTypeDockerManifestList, with(oci.MediaTypeDockerManifestList, object{"manifests": list})},
		"no content type":   {"", oci.MediaTypeDockerManifest, with(oci.MediaTypeDockerManifest, plain)},
		"no media type":     {oci.MediaTypeImageManifest, oci.MediaTypeImageManifest, plain},
		"neither":           {"", oci.MediaTypeImageManifest, plain},
		"neither, an index": {"", oci.MediaTypeImageIndex, object{"schemaVersion": 2, "manifests": list}},
		"empty index":       {oci.MediaTypeImageIndex, oci.MediaTypeImageIndex, with(oci.MediaTypeImageIndex, object{"manifests": []any{}})},
		"parameters":        {oci.MediaTypeImageManifest + "; charset=utf-8", oci.MediaTypeImageManifest, with(oci.MediaTypeImageManifest, plain)},
		"upper case":        {strings.ToUpper(oci.MediaTypeImageManifest), oci.MediaTypeImageManifest, plain},
	} {
		tag := strings.Trim(strings.NewReplacer(" ", "-", ",", "").Replace(name), "-")
		c.manifest["annotations"] = map[string]string{"name": name, "html": "<&>"}
		payload, err := json.MarshalIndent(c.manifest, "\r\n ", "\t") // formatted in a way that no encoder would reproduce
		if err != nil {
			t.Fatal(err)
		}
		body := " " + string(payload) + "\n"
		d := digest(body)
		for _, ref := range []string{tag, d.String()} {
			r.Do(t, "PUT", "/v2/a/b/manifests/"+ref, body, "Content-Type", c.sent).
				Want(t, 201, "", "Docker-Content-Digest", d.String(), "Location", "/v2/a/b/manifests/"+d.String(),
					"OCI-Subject", "", "OCI-Tag", "", "Content-Length", "0")
			r.Do(t, "GET", "/v2/a/b/manifests/"+ref, "").Want(t, 200, "", "Content-Type", c.want).Text(t, body)
		}
	}
	// With sha512 the same content is another manifest.
	payload := image(t, config, nil, nil)
	d := digest512(payload)
	r.Do(t, "PUT", "/v2/a/b/manifests/"+d.String(), payload).Want(t, 201, "", "Docker-Content-Digest", d.String())
	r.Do(t, "GET", "/v2/a/b/manifests/"+d.String(), "").Want(t, 200, "", "Docker-Content-Digest", d.String()).Text(t, payload)
	r.Do(t, "GET", "/v2/a/b/manifests/"+digest(payload).String(), "").Want(t, 404, oci.ManifestUnknown)
}

// TestPushInvalidManifest: a client pushes content that isn't a valid manifest, or whose digest
// differs from the one in the path. The registry must answer 400 and store nothing.
func TestPushInvalidManifest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	config := r.Push(t, "a", "{}")
	good := image(t, config, nil, nil)
	for what, c := range map[string]struct{ contentType, body string }{
		"empty":            {oci.MediaTypeImageManifest, ""},
		"text":             {oci.MediaTypeImageManifest, "blablabla"},
		"array":            {oci.MediaTypeImageManifest, "[]"},
		"cut":              {oci.MediaTypeImageManifest, good[:len(good)-1]},
		"two":              {oci.MediaTypeImageManifest, good + good},
		"not UTF-8":        {oci.MediaTypeImageManifest, strings.Replace(good, "schema", "\xff", 1)},
		"no config":        {oci.MediaTypeImageManifest, `{"schemaVersion":2,"layers":[]}`},
		"bad digest":       {"", strings.Replace(good, "sha256:", "sha256:0", 1)},
		"negative size":    {"", strings.Replace(good, `"size":1`, `"size":-1`, 1)},
		"schema 1":         {"", `{"schemaVersion":1,"name":"x","tag":"y","fsLayers":[]}`},
		"docker schema 1":  {oci.MediaTypeDockerSchema1Signed, `{"schemaVersion":1}`},
		"another type":     {oci.MediaTypeDockerManifest, good},
		"unknown type":     {"application/json", `{"schemaVersion":2,"config":{}}`},
		"image and index":  {"", image(t, config, nil, object{"manifests": []any{}})},
		"index as image":   {oci.MediaTypeImageManifest, index(t)},
		"doubled key":      {"", strings.Replace(good, "{", `{"schemaVersion":2,`, 1)},
		"subject is text":  {"", image(t, config, nil, object{"subject": "x"})},
		"NUL in a note":    {"", image(t, config, nil, object{"annotations": map[string]string{"k": "a\x00b"}})},
		"NUL in the type":  {"", image(t, config, nil, object{"artifactType": "a\x00b"})},
		"notes as a list":  {"", image(t, config, nil, object{"annotations": []string{"x"}})},
		"layer of no type": {"", image(t, config, nil, object{"layers": []any{object{"digest": config.String(), "size": 2}}})},
	} {
		for _, ref := range []string{"v1", digest(c.body).String()} {
			a := r.Do(t, "PUT", "/v2/a/manifests/"+ref, c.body, "Content-Type", c.contentType)
			if a.StatusCode != 400 || a.Code(t) != oci.ManifestInvalid {
				t.Errorf("%s: %d %s, want 400 MANIFEST_INVALID", what, a.StatusCode, a.Content)
			}
		}
	}
	for _, d := range []oci.Digest{digest("x"), digest512("x")} {
		r.Do(t, "PUT", "/v2/a/manifests/"+d.String(), good).Want(t, 400, oci.DigestInvalid)
	}
	for _, ref := range []string{"sha256:abc", "md5:" + strings.Repeat("a", 32)} {
		r.Do(t, "PUT", "/v2/a/manifests/"+ref, good).Want(t, 400, oci.DigestInvalid)
	}
	for _, tag := range []string{".x", "-x", strings.Repeat("t", 129), "t%20x"} {
		r.Do(t, "PUT", "/v2/a/manifests/"+tag, good).Want(t, 400, oci.ManifestInvalid)
	}
	r.Do(t, "GET", "/v2/a/tags/list", "").Want(t, 200, "").Text(t, `{"name":"a","tags":[]}`)
}

// TestManifestSize: the registry must accept a manifest of 4 MiB. It must refuse a manifest
// that is one byte longer with 413, whether or not the request has a Content-Length.
func TestManifestSize(t *testing.T) {
	t.Parallel()
	r := setup(t)
	config := r.Push(t, "a", "{}")
	payload := image(t, config, nil, nil)
	most := payload + strings.Repeat(" ", oci.MaxManifestSize-len(payload))
	for _, body := range []io.Reader{strings.NewReader(most), chunked(most)} {
		a, err := r.Try(t.Context(), "PUT", "/v2/a/manifests/big", body)
		if err != nil {
			t.Fatal(err)
		}
		a.Want(t, 201, "")
	}
	r.Do(t, "GET", "/v2/a/manifests/big", "").Want(t, 200, "").Text(t, most)
	for _, more := range []int{1, 1 << 20} {
		over := most + strings.Repeat(" ", more)
		for _, body := range []io.Reader{strings.NewReader(over), chunked(over)} {
			a, err := r.Try(t.Context(), "PUT", "/v2/a/manifests/"+digest(over).String(), body)
			if err != nil {
				t.Fatal(err)
			}
			if a.StatusCode != 413 {
				t.Errorf("%d bytes: %d %s, want 413", len(over), a.StatusCode, a.Content)
			}
		}
	}
}

// TestMissingContent: a client pushes a manifest that refers to a blob or manifest which the
// repository doesn't have. The registry must answer MANIFEST_BLOB_UNKNOWN, name the missing
// digest, and not store the manifest.
func TestMissingContent(t *testing.T) {
	t.Parallel()
	r := setup(t)
	config, layer := r.Push(t, "a", "{}"), r.Push(t, "a", "layer")
	elsewhere := r.Push(t, "b", "in b")
	childElsewhere := r.Put(t, "b", "v1", r.Simple(t, "b", 1, nil))
	child := r.Put(t, "a", "child", image(t, config, nil, nil))
	none := digest("none")
	foreign := descriptor(oci.MediaTypeDockerForeignLayer, none, 1)
	ordinary := descriptor(servertest.LayerType, none, 1)
	for what, c := range map[string]struct {
		payload string
		missing []oci.Digest
	}{
		"config":                   {image(t, none, []oci.Digest{layer}, nil), []oci.Digest{none}},
		"layer":                    {image(t, config, []oci.Digest{layer, none}, nil), []oci.Digest{none}},
		"both":                     {image(t, elsewhere, []oci.Digest{none}, nil), []oci.Digest{none, elsewhere}},
		"layer is a manifest":      {image(t, config, []oci.Digest{child}, nil), []oci.Digest{child}},
		"child":                    {index(t, child, none), []oci.Digest{none}},
		"child elsewhere":          {index(t, childElsewhere), []oci.Digest{childElsewhere}},
		"child is a blob":          {index(t, layer), []oci.Digest{layer}},
		"of sha512":                {image(t, config, []oci.Digest{digest512("layer")}, nil), []oci.Digest{digest512("layer")}},
		"foreign and ordinary too": {image(t, config, nil, object{"layers": []any{foreign, ordinary}}), []oci.Digest{none}},
		"ordinary and foreign too": {image(t, config, nil, object{"layers": []any{ordinary, foreign}}), []oci.Digest{none}},
	} {
		a := r.Do(t, "PUT", "/v2/a/manifests/v1", c.payload)
		if a.StatusCode != 400 || a.Code(t) != oci.ManifestBlobUnknown {
			t.Errorf("%s: %d %s, want 400 MANIFEST_BLOB_UNKNOWN", what, a.StatusCode, a.Content)
		}
		for _, d := range c.missing {
			if !strings.Contains(string(a.Content), d.String()) {
				t.Errorf("%s: %s doesn't name %s", what, a.Content, d)
			}
		}
		r.Do(t, "GET", "/v2/a/manifests/"+digest(c.payload).String(), "").Want(t, 404, oci.ManifestUnknown)
	}
	r.Do(t, "PUT", "/v2/a/manifests/v1", image(t, config, nil, object{"layers": []any{foreign}})).Want(t, 201, "")
	r.Do(t, "PUT", "/v2/new/manifests/v1", image(t, config, nil, nil)).Want(t, 400, oci.ManifestBlobUnknown)
}

// TestForeignAndOrdinaryLayer: a manifest lists the same digest twice: as a foreign layer,
// whose blob need not be in the registry, and as an ordinary layer. The registry must treat the
// digest as an ordinary layer, and refuse to delete its blob.
func TestForeignAndOrdinaryLayer(t *testing.T) {
	t.Parallel()
	r := setup(t)
	config, layer := r.Push(t, "a", "{}"), r.Push(t, "a", "layer")
	r.Do(t, "PUT", "/v2/a/manifests/v1", image(t, config, nil, object{"layers": []any{
		descriptor(oci.MediaTypeDockerForeignLayer, layer, 5), descriptor(servertest.LayerType, layer, 5),
	}})).Want(t, 201, "")
	r.Do(t, "DELETE", "/v2/a/blobs/"+layer.String(), "").Want(t, 409, oci.Denied)
}

// TestPushWithTags tests the tag parameter of "Pushing Manifests".
func TestPushWithTags(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.Simple(t, "a", 1, nil)
	d := digest(payload)
	path := "/v2/a/manifests/" + d.String()
	many := func(n int) (query string, tags []string) {
		q := url.Values{}
		for i := range n {
			tags = append(tags, fmt.Sprintf("t%03d", i))
			q.Add("tag", tags[i])
		}
		return "?" + q.Encode(), tags
	}
	for _, n := range []int{1, 10, 11, 100} {
		query, tags := many(n)
		for range 2 { // new, then again
			a := r.Do(t, "PUT", path+query, payload, "Content-Type", oci.MediaTypeImageManifest).Want(t, 201, "", "Location", path)
			var got []string
			for _, v := range a.Header.Values("OCI-Tag") {
				for tag := range strings.SplitSeq(v, ",") {
					got = append(got, strings.TrimSpace(tag))
				}
			}
			if !slices.Equal(got, tags) {
				t.Errorf("OCI-Tag %v, want %v", got, tags)
			}
		}
		for _, tag := range tags {
			r.Do(t, "HEAD", "/v2/a/manifests/"+tag, "").Want(t, 200, "", "Docker-Content-Digest", d.String())
		}
	}
	query, _ := many(101)
	r.Do(t, "PUT", path+query, payload).Want(t, 414, oci.Unsupported)
	r.Do(t, "PUT", path+"?tag=ok&tag=-x", payload).Want(t, 400, oci.ManifestInvalid)
	r.Do(t, "PUT", path+"?tag=", payload).Want(t, 400, oci.ManifestInvalid)
	r.Do(t, "GET", "/v2/a/manifests/ok", "").Want(t, 404, oci.ManifestUnknown)
	r.Do(t, "PUT", "/v2/a/manifests/v1?tag=v2", payload).Want(t, 400, oci.Unsupported)
	r.Do(t, "PUT", path+"?tag=same&tag=same", payload).Want(t, 201, "", "OCI-Tag", "*")
}

// TestMoveTag: a client pushes several manifests to one tag, one after the other. After each
// push, a GET of the tag must return the manifest that was pushed last, although the registry
// had the previous one in its cache.
func TestMoveTag(t *testing.T) {
	t.Parallel()
	r := setup(t)
	one, two := r.Simple(t, "a", 1, nil), r.Simple(t, "a", 2, nil)
	for _, payload := range []string{one, two, one, two, two} {
		d := r.Put(t, "a", "latest", payload)
		for range 2 {
			r.Do(t, "GET", "/v2/a/manifests/latest", "").Want(t, 200, "", "Docker-Content-Digest", d.String()).Text(t, payload)
		}
	}
	r.Do(t, "GET", "/v2/a/manifests/"+digest(one).String(), "").Want(t, 200, "").Text(t, one)
	r.Do(t, "PUT", "/v2/a/manifests/"+digest(one).String()+"?tag=latest", one).Want(t, 201, "", "OCI-Tag", "latest")
	r.Do(t, "GET", "/v2/a/manifests/latest", "").Want(t, 200, "").Text(t, one)
}

// TestPushSubject tests "Pushing Manifests with Subject" of the OCI Distribution Specification.
// A client pushes images and image indexes that have a subject, before and after it pushes the
// subject itself.
func TestPushSubject(t *testing.T) {
	t.Parallel()
	r := setup(t)
	subject := r.Simple(t, "a", "subject", nil)
	for _, d := range []oci.Digest{digest(subject), digest512("absent"), digest("absent")} {
		names := object{"subject": descriptor(oci.MediaTypeImageManifest, d, 5)}
		referrers := []string{
			r.Simple(t, "a", "1"+d.String(), names),
			encode(t, object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": []any{}, "subject": names["subject"]}),
		}
		for range 2 {
			for i, payload := range referrers {
				r.Do(t, "PUT", "/v2/a/manifests/"+digest(payload).String(), payload).Want(t, 201, "", "OCI-Subject", d.String())
				r.Do(t, "PUT", fmt.Sprintf("/v2/a/manifests/t%d", i), payload).Want(t, 201, "", "OCI-Subject", d.String())
			}
		}
	}
	r.Put(t, "a", "subject", subject)
}
