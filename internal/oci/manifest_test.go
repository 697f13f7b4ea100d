package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

	config = `{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + digestA + `","size":7}`
	layer  = `{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"` + digestB + `","size":9}`
	child  = `{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"` + digestB + `","size":9,"platform":{"os":"linux","architecture":"arm64"}}`

	imageHead  = `"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json"`
	indexHead  = `"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json"`
	image      = `{` + imageHead + `,"config":` + config + `,"layers":[` + layer + `]}`
	imageIndex = `{` + indexHead + `,"manifests":[` + child + `]}`
)

func mustDigest(t testing.TB, s string) Digest {
	t.Helper()
	d, err := ParseDigest(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestParseImage(t *testing.T) {
	t.Parallel()
	body := ` { "schemaVersion" : 2 , "mediaType":"application/vnd.oci.image.manifest.v1+json",
		"artifactType":"application/x-sbom", "config":` + config + `, "layers":[` + layer + `,
		{"mediaType":"a/b","digest":"` + emptySHA512 + `","size":0,"urls":["https://example.com/l"],"data":"e30=","x":{"y":["]}"]}}],
		"subject":{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"` + digestB + `","size":3},
		"annotations":{"k":"v\u00e9","a\"b":"\\"},"own":[{"config":1,"config":2}]}
`
	m, err := ParseManifest(MediaTypeImageManifest+"; charset=utf-8", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := &Manifest{
		MediaType: MediaTypeImageManifest, Kind: KindImage, ArtifactType: "application/x-sbom",
		Config: &Descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: mustDigest(t, digestA), Size: 7},
		Layers: []Descriptor{
			{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: mustDigest(t, digestB), Size: 9},
			{MediaType: "a/b", Digest: mustDigest(t, emptySHA512), URLs: []string{"https://example.com/l"}},
		},
		Subject:     &Descriptor{MediaType: MediaTypeImageManifest, Digest: mustDigest(t, digestB), Size: 3},
		Annotations: map[string]string{"k": "vé", `a"b`: `\`},
	}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("got  %+v\nwant %+v", m, want)
	}
}

func TestParseIndex(t *testing.T) {
	t.Parallel()
	for _, mediaType := range []string{MediaTypeImageIndex, MediaTypeDockerManifestList} {
		m, err := ParseManifest(mediaType, []byte(`{"schemaVersion":2,"mediaType":"`+mediaType+`","manifests":[`+child+`]}`))
		if err != nil {
			t.Fatal(err)
		}
		want := []Descriptor{{
			MediaType: MediaTypeImageManifest, Digest: mustDigest(t, digestB), Size: 9,
			Platform: &Platform{OS: "linux", Architecture: "arm64"},
		}}
		if m.Kind != KindIndex || m.MediaType != mediaType || m.ArtifactType != "" || m.Config != nil || !reflect.DeepEqual(m.Manifests, want) {
			t.Errorf("%s: %+v", mediaType, m)
		}
	}
}

func TestManifestType(t *testing.T) {
	t.Parallel()
	untypedImage := `{"schemaVersion":2,"config":` + config + `,"layers":[]}`
	untypedIndex := `{"schemaVersion":2,"manifests":[]}`
	for _, test := range []struct{ name, contentType, body, want string }{
		{"content type", MediaTypeImageManifest, untypedImage, MediaTypeImageManifest},
		{"docker content type", MediaTypeDockerManifest, untypedImage, MediaTypeDockerManifest},
		{"parameters and case", "Application/VND.oci.image.index.v1+JSON ; a=b", untypedIndex, MediaTypeImageIndex},
		{"field", "", image, MediaTypeImageManifest},
		{"fields of an image", "", untypedImage, MediaTypeImageManifest},
		{"fields of an index", "", untypedIndex, MediaTypeImageIndex},
		{"null lists", "", `{"schemaVersion":2,"config":` + config + `,"layers":null,"manifests":null}`, MediaTypeImageManifest},
		{"null index", MediaTypeImageIndex, `{"schemaVersion":2,"manifests":null}`, MediaTypeImageIndex},
		{"no layers", "", `{` + imageHead + `,"config":` + config + `}`, MediaTypeImageManifest},
	} {
		m, err := ParseManifest(test.contentType, []byte(test.body))
		if err != nil || m.MediaType != test.want {
			t.Errorf("%s: %+v, %v", test.name, m, err)
		}
	}
}

func TestArtifactType(t *testing.T) {
	t.Parallel()
	empty := `{"mediaType":"` + MediaTypeEmpty + `","digest":"` + digestA + `","size":2}`
	for _, test := range []struct{ name, body, want string }{
		{"own", `{` + imageHead + `,"artifactType":"a/b","config":` + empty + `,"layers":[]}`, "a/b"},
		{"configuration", `{` + imageHead + `,"config":` + config + `,"layers":[]}`, "application/vnd.oci.image.config.v1+json"},
		{"empty own", `{` + imageHead + `,"artifactType":"","config":` + empty + `,"layers":[]}`, MediaTypeEmpty},
		{"own of an index", `{` + indexHead + `,"artifactType":"a/b","manifests":[]}`, "a/b"},
		{"none of an index", imageIndex, ""},
	} {
		m, err := ParseManifest("", []byte(test.body))
		if err != nil || m.ArtifactType != test.want {
			t.Errorf("%s: %+v, %v", test.name, m, err)
		}
	}
}

func TestParseManifestRefuses(t *testing.T) {
	t.Parallel()
	with := func(members string) string { return `{` + imageHead + `,` + members + `}` }
	descriptor := func(mediaType, digest, size string) string {
		return `{"mediaType":` + mediaType + `,"digest":` + digest + `,"size":` + size + `}`
	}
	layers := func(d string) string {
		return with(`"config":` + config + `,"layers":[` + layer + `,` + layer + `,` + d + `]`)
	}
	good := `"` + emptySHA256 + `"`
	for _, test := range []struct{ name, contentType, body, want string }{
		{"empty", "", "", "manifest: it isn't JSON"},
		{"no JSON", "", "x", "manifest: it isn't JSON"},
		{"cut off", "", image[:len(image)-1], "manifest: it isn't JSON"},
		{"trailing data", "", image + "{}", "manifest: it isn't JSON"},
		{"bad UTF-8", "", strings.Replace(image, "layer", "l\xff", 1), "manifest: it isn't UTF-8"},
		{"byte order mark", "", "\ufeff" + image, "manifest: it isn't JSON"},
		{"array", "", "[]", "manifest: it must be a JSON object, not an array"},
		{"null", "", "null", "manifest: it must be a JSON object, not null"},
		{"too deep", "", `{"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, "manifest: it isn't JSON"},
		{"no version", "", `{"config":` + config + `}`, "schemaVersion: it is required"},
		{"version 3", "", `{"schemaVersion":3}`, "schemaVersion: it must be 2, not 3"},
		{"version text", "", `{"schemaVersion":"2"}`, "schemaVersion: it must be 2"},
		{"version null", "", `{"schemaVersion":null}`, "schemaVersion: it must be 2, not null"},
		{"schema 1", "", `{"schemaVersion":1,"fsLayers":[]}`, "schemaVersion: Docker schema 1"},
		{"schema 1 layers", "", with(`"config":` + config + `,"fsLayers":[]`), "schemaVersion: Docker schema 1"},
		{"schema 1 type", MediaTypeDockerSchema1Signed, image, "mediaType: Docker schema 1"},
		{"other type", "application/json", `{"schemaVersion":2}`, `mediaType: "application/json" isn't supported: it must be one of ` + MediaTypeImageManifest},
		{"other field", "", `{"schemaVersion":2,"mediaType":"application/vnd.oci.artifact.manifest.v1+json"}`, "mediaType: "},
		{"types differ", MediaTypeDockerManifest, image, "mediaType: it is"},
		{"type no text", "", `{"schemaVersion":2,"mediaType":5}`, "mediaType: it must be a string, not a number"},
		{"both kinds", "", with(`"config":` + config + `,"manifests":[]`), "manifests: a manifest has either"},
		{"both kinds, layers", MediaTypeImageIndex, `{"schemaVersion":2,"layers":[],"manifests":[]}`, "manifests: a manifest has either"},
		{"index as image", MediaTypeImageManifest, `{"schemaVersion":2,"manifests":[]}`, "manifests: "},
		{"image as index", MediaTypeImageIndex, `{"schemaVersion":2,"config":` + config + `}`, "manifests: "},
		{"no manifests", MediaTypeImageIndex, `{"schemaVersion":2}`, "manifests: it is required"},
		{"no config", "", with(`"layers":[]`), "config: it is required"},
		{"config null", "", with(`"config":null,"layers":[]`), "config: it is required"},
		{"config no object", "", with(`"config":[],"layers":[]`), "config: it must be a JSON object, not an array"},
		{"config without type", "", with(`"config":{"digest":` + good + `,"size":1}`), "config.mediaType: it is required"},
		{"layers no array", "", with(`"config":` + config + `,"layers":{}`), "layers: it must be a JSON array"},
		{"layer no object", "", layers(`5`), "layers[2]: it must be a JSON object, not a number"},
		{"layer without digest", "", layers(`{"mediaType":"a/b","size":1}`), "layers[2].digest: it is required"},
		{"layer digest", "", layers(descriptor(`"a/b"`, `"sha256:zz"`, "1")), "layers[2].digest: invalid digest"},
		{"layer algorithm", "", layers(descriptor(`"a/b"`, `"md5:aa"`, "1")), "layers[2].digest: unsupported digest"},
		{"layer digest no text", "", layers(descriptor(`"a/b"`, `7`, "1")), "layers[2].digest: it must be a string"},
		{"negative size", "", layers(descriptor(`"a/b"`, good, "-1")), "layers[2].size: it may not be negative"},
		{"fractional size", "", layers(descriptor(`"a/b"`, good, "1.0")), "layers[2].size: it must be a whole number"},
		{"exponent size", "", layers(descriptor(`"a/b"`, good, "1e3")), "layers[2].size: it must be a whole number"},
		{"huge size", "", layers(descriptor(`"a/b"`, good, "9223372036854775808")), "layers[2].size: it must be a whole number"},
		{"text size", "", layers(descriptor(`"a/b"`, good, `"1"`)), "layers[2].size: it must be a whole number"},
		{"no size", "", layers(`{"mediaType":"a/b","digest":` + good + `}`), "layers[2].size: it is required"},
		{"two sizes", "", layers(descriptor(`"a/b"`, `"`+digestB+`"`, "8")), "layers[2].size: it is 8 but layers[0] gives 9"},
		{"long type", "", layers(descriptor(`"`+strings.Repeat("a", 256)+`"`, good, "1")), "layers[2].mediaType: it has 256 bytes"},
		{"NUL in a type", "", layers(descriptor(`"a\u0000b"`, good, "1")), "layers[2].mediaType: control characters"},
		{"urls", "", layers(`{"mediaType":"a/b","digest":` + good + `,"size":1,"urls":"x"}`), "layers[2].urls: a JSON string"},
		{"descriptor key twice", "", layers(`{"mediaType":"a/b","digest":` + good + `,"size":1,"digest":` + good + `}`), `layers[2]: the key "digest" comes twice`},
		{"descriptor key case", "", layers(`{"mediaType":"a/b","Digest":` + good + `,"size":1}`), `layers[2]: the key "Digest" must be written "digest"`},
		{"subject", "", with(`"config":` + config + `,"subject":{"mediaType":"a/b","digest":"x","size":1}`), "subject.digest: invalid digest"},
		{"annotations", "", with(`"config":` + config + `,"annotations":{"a":1}`), "annotations: a JSON number"},
		{"NUL in annotations", "", with(`"config":` + config + `,"annotations":{"a":"\u0000"}`), `annotations: "a" holds a NUL`},
		{"index child", "", `{` + indexHead + `,"manifests":[` + child + `,{}]}`, "manifests[1].mediaType: it is required"},
		{"config twice", "", with(`"config":` + config + `,"config":` + config), `manifest: the key "config" comes twice`},
		{"config twice, escaped", "", with(`"config":` + config + `,"c\u006fnfig":` + config), `manifest: the key "config" comes twice`},
		{"config in another case", "", with(`"config":` + config + `,"Config":` + config), `manifest: the key "Config" must be written "config"`},
		{"only Config", "", with(`"Config":` + config), `manifest: the key "Config" must be written "config"`},
		{"manifests hidden by case", "", with(`"config":` + config + `,"MANIFESTS":[]`), `manifest: the key "MANIFESTS"`},
		{"long s", "", with(`"config":` + config + `,"manifest\u017f":[]`), `must be written "manifests"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, err := ParseManifest(test.contentType, []byte(test.body))
			if m != nil || err == nil {
				t.Fatalf("accepted: %+v", m)
			}
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Code != ManifestInvalid || e.HTTPStatus() != http.StatusBadRequest {
				t.Fatalf("not a MANIFEST_INVALID: %v", err)
			}
			if !strings.Contains(e.Message, test.want) {
				t.Errorf("message %q, want it to hold %q", e.Message, test.want)
			}
		})
	}
}

func TestManifestLimits(t *testing.T) {
	t.Parallel()
	_, err := ParseManifest("", make([]byte, MaxManifestSize+1))
	if e, ok := errors.AsType[*Error](err); !ok || e.HTTPStatus() != http.StatusRequestEntityTooLarge || e.Code != ManifestInvalid {
		t.Errorf("too large: %v", err)
	}
	padded := strings.Replace(image, "{", "{"+strings.Repeat(" ", MaxManifestSize-len(image)), 1)
	if _, err := ParseManifest("", []byte(padded)); err != nil {
		t.Errorf("exactly the largest: %v", err)
	}
	list := func(n int) []byte {
		one := `{"mediaType":"a/b","digest":"` + digestB + `","size":9}`
		return []byte(`{` + indexHead + `,"manifests":[` + one + strings.Repeat(","+one, n-1) + `]}`)
	}
	if m, err := ParseManifest("", list(MaxDescriptors)); err != nil || len(m.Manifests) != MaxDescriptors || len(m.DistinctManifests()) != 1 {
		t.Errorf("the most manifests: %v", err)
	}
	if _, err := ParseManifest("", list(MaxDescriptors+1)); err == nil || !strings.Contains(err.Error(), "manifests: more than 10000") {
		t.Errorf("too many manifests: %v", err)
	}
}

func TestForeign(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		d    Descriptor
		want bool
	}{
		{Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip"}, false},
		{Descriptor{MediaType: "a/b", URLs: []string{"https://example.com"}}, true},
		{Descriptor{MediaType: "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"}, true},
		{Descriptor{MediaType: "application/vnd.oci.image.layer.nondistributable.v1.tar"}, true},
		{Descriptor{MediaType: "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"}, true},
	} {
		if got := test.d.Foreign(); got != test.want {
			t.Errorf("%+v: %v", test.d, got)
		}
	}
}

func TestDistinctLayers(t *testing.T) {
	t.Parallel()
	a, b, c := Compute(SHA256, []byte("a")), Compute(SHA256, []byte("b")), Compute(SHA256, []byte("c"))
	m := &Manifest{
		Kind:   KindImage,
		Config: &Descriptor{Digest: c, Size: 100},
		Layers: []Descriptor{
			{Digest: a, Size: 1, URLs: []string{"u"}}, {Digest: b, Size: 10}, {Digest: a, Size: 1}, {Digest: b, Size: 10},
			{Digest: c, Size: 100}, {Digest: Compute(SHA256, nil), Size: 1000, URLs: []string{"u"}},
		},
	}
	distinct := m.DistinctLayers()
	if len(distinct) != 4 || distinct[0].Digest != a || distinct[0].Foreign() || distinct[1].Digest != b {
		t.Errorf("%+v", distinct)
	}
}

func TestDescriptorMarshals(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(Descriptor{MediaType: "a/b", Digest: mustDigest(t, digestA), Annotations: map[string]string{"k": "v"}})
	want := `{"mediaType":"a/b","digest":"` + digestA + `","size":0,"annotations":{"k":"v"}}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}

func TestParsedManifestKeepsNothingOfTheBody(t *testing.T) {
	t.Parallel()
	body := []byte(strings.Replace(image, `"layers"`, `"annotations":{"k":"v"},"layers"`, 1))
	m, err := ParseManifest("", body)
	if err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprintf("%+v %+v", *m, *m.Config)
	clear(body)
	if after := fmt.Sprintf("%+v %+v", *m, *m.Config); after != before {
		t.Errorf("it changed with its body:\n%s\n%s", before, after)
	}
}

func FuzzManifest(f *testing.F) {
	for _, body := range []string{
		"", "{}", image, imageIndex, `{"schemaVersion":1}`, `{"schemaVersion":2,"manifests":null}`,
		`{"schemaVersion":2,"x":{"a":["}",[{}]]},"config":` + config + `,"annotations":{"a":"b"},"subject":` + child + `}`,
		`{` + imageHead + `,"config":` + config + `,"layers":[` + layer + `,` + layer + `]}`,
	} {
		f.Add("", []byte(body))
		f.Add(MediaTypeImageManifest, []byte(body))
	}
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		m, err := ParseManifest(contentType, body)
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Code != ManifestInvalid || m != nil || len(MarshalErrors(e)) == 0 {
				t.Fatalf("%+v, %v", m, err)
			}
			return
		}
		checkConsistent(t, m)
		// If the manifest is parsed again with the type that the first parse found, the result
		// must be the same.
		again, err := ParseManifest(m.MediaType, body)
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("read again: %+v, %v", again, err)
		}
		checkAgainstStandardLibrary(t, m, body)
	})
}

func checkConsistent(t *testing.T, m *Manifest) {
	t.Helper()
	kind, ok := KindOf(m.MediaType)
	if !ok || kind != m.Kind {
		t.Fatalf("type %q, kind %v", m.MediaType, m.Kind)
	}
	if (m.Kind == KindImage) != (m.Config != nil) || m.Kind == KindIndex && m.Layers != nil || m.Kind == KindImage && m.Manifests != nil {
		t.Fatalf("fields of both kinds: %+v", m)
	}
	all := append(append([]Descriptor{}, m.Layers...), m.Manifests...)
	for _, d := range []*Descriptor{m.Config, m.Subject} {
		if d != nil {
			all = append(all, *d)
		}
	}
	for _, d := range all {
		if back, err := ParseDigest(d.Digest.String()); err != nil || back != d.Digest || d.Size < 0 || d.MediaType == "" {
			t.Fatalf("%+v: %v", d, err)
		}
	}
	if len(m.DistinctLayers()) > len(m.Layers) {
		t.Fatalf("%+v", m)
	}
}

// checkAgainstStandardLibrary parses a manifest that ParseManifest has accepted with
// encoding/json too, and expects the same result. This is possible because an accepted
// manifest has no two keys that differ only in case.
func checkAgainstStandardLibrary(t *testing.T, m *Manifest, body []byte) {
	t.Helper()
	var std struct {
		Config    *struct{ Digest string }
		Layers    []struct{ Digest string }
		Manifests []struct{ Digest string }
		Subject   *struct{ Digest string }
	}
	if err := json.Unmarshal(body, &std); err != nil {
		t.Fatalf("encoding/json refuses what was accepted: %v", err)
	}
	if len(std.Layers) != len(m.Layers) || len(std.Manifests) != len(m.Manifests) ||
		(std.Config == nil) != (m.Config == nil) || (std.Subject == nil) != (m.Subject == nil) {
		t.Fatalf("encoding/json reads %+v, not %+v", std, m)
	}
	for i, d := range std.Layers {
		if d.Digest != m.Layers[i].Digest.String() {
			t.Fatalf("layer %d: %q, %q", i, d.Digest, m.Layers[i].Digest)
		}
	}
	for i, d := range std.Manifests {
		if d.Digest != m.Manifests[i].Digest.String() {
			t.Fatalf("manifest %d: %q, %q", i, d.Digest, m.Manifests[i].Digest)
		}
	}
}

func BenchmarkParseManifest(b *testing.B) {
	body := []byte(image)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseManifest(MediaTypeImageManifest, body); err != nil {
			b.Fatal(err)
		}
	}
}
