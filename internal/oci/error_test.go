package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

func TestCodes(t *testing.T) {
	t.Parallel()
	want := map[Code]int{
		"BLOB_UNKNOWN": 404, "BLOB_UPLOAD_INVALID": 400, "BLOB_UPLOAD_UNKNOWN": 404, "DIGEST_INVALID": 400,
		"MANIFEST_BLOB_UNKNOWN": 400, "MANIFEST_INVALID": 400, "MANIFEST_UNKNOWN": 404, "NAME_INVALID": 400,
		"NAME_UNKNOWN": 404, "SIZE_INVALID": 400, "UNAUTHORIZED": 401, "DENIED": 403, "UNSUPPORTED": 405,
		"TOOMANYREQUESTS": 429, "UNKNOWN": 500, "UNAVAILABLE": 503,
	}
	if len(codes) != len(want) {
		t.Errorf("%d codes, want %d", len(codes), len(want))
	}
	grammar := regexp.MustCompile(`^[A-Z_]+$`)
	for code, status := range want {
		if code.HTTPStatus() != status || NewError(code).HTTPStatus() != status {
			t.Errorf("%s: %d, want %d", code, code.HTTPStatus(), status)
		}
		if !grammar.MatchString(string(code)) || code.Message() == "" {
			t.Errorf("%s: message %q", code, code.Message())
		}
	}
	if Code("OTHER").HTTPStatus() != 500 || Code("OTHER").Message() == "" {
		t.Error("an unknown code has no answer")
	}
}

func TestError(t *testing.T) {
	t.Parallel()
	base := Errorf(BlobUnknown, "blob %s: %w", "x", io.EOF)
	if !errors.Is(base, io.EOF) || base.Message != "blob x: EOF" || base.Error() != "BLOB_UNKNOWN: blob x: EOF" {
		t.Errorf("%q, %q", base.Message, base.Error())
	}
	changed := base.WithDetail(map[string]string{"digest": "d"}).WithStatus(http.StatusGone)
	if base.Detail != nil || base.Status != 0 || changed.HTTPStatus() != http.StatusGone || !errors.Is(changed, io.EOF) {
		t.Errorf("base %+v, changed %+v", base, changed)
	}
	hidden := NewError(Unavailable).WithCause(errors.New("password=secret"))
	if !strings.Contains(hidden.Error(), "secret") {
		t.Errorf("the log doesn't see the cause: %v", hidden)
	}
	if body := MarshalErrors(hidden); strings.Contains(string(body), "secret") {
		t.Errorf("the client sees the cause: %s", body)
	}
}

func TestCodeOf(t *testing.T) {
	t.Parallel()
	if got := CodeOf(fmt.Errorf("reading: %w", NewError(NameUnknown))); got != NameUnknown {
		t.Errorf("wrapped: %q", got)
	}
	if CodeOf(io.EOF) != Unknown || CodeOf(nil) != "" {
		t.Errorf("others: %q, %q", CodeOf(io.EOF), CodeOf(nil))
	}
}

func TestMarshalErrors(t *testing.T) {
	t.Parallel()
	got := string(MarshalErrors(
		NewError(NameUnknown),
		Errorf(ManifestBlobUnknown, "layers[0]").WithDetail(map[string]string{"digest": emptySHA256}),
	))
	want := `{"errors":[{"code":"NAME_UNKNOWN","message":"repository name not known to registry"},` +
		`{"code":"MANIFEST_BLOB_UNKNOWN","message":"layers[0]","detail":{"digest":"` + emptySHA256 + `"}}]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(MarshalErrors()); got != `{"errors":[]}` {
		t.Errorf("no errors: %s", got)
	}
	var body ErrorBody
	if err := json.Unmarshal(MarshalErrors(NewError(Denied).WithDetail(func() {})), &body); err != nil ||
		len(body.Errors) != 1 || body.Errors[0].Code != Denied || body.Errors[0].Detail != nil {
		t.Errorf("a detail that JSON can't hold: %+v, %v", body, err)
	}
}
