package management_test

import (
	"encoding/json"
	"html"
	"regexp"
	"strings"
	"testing"
)

// TestAPIPage: a client gets the HTML page about the API. The page must describe every
// operation of the OpenAPI document. It must have no script and load nothing from other URLs.
func TestAPIPage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Manage(t, "GET", "/", "")
	page := string(a.Content)
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("%d %s", a.StatusCode, a.Header.Get("Content-Type"))
	}
	if policy := a.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("Content-Security-Policy: %q", policy)
	}
	examples := strings.NewReplacer("http://127.0.0.1:5000", "", "https://token.actions.githubusercontent.com", "")
	if found := regexp.MustCompile(`<script|src=|url\(|@import|https?://`).FindString(examples.Replace(page)); found != "" {
		t.Errorf("the page has %q", found)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Summary     string
			Parameters  []struct{ Name string }
		}
	}
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &doc)
	n := 0
	for path, operations := range doc.Paths {
		for method, op := range operations {
			n++
			_, rest, ok := strings.Cut(page, `<details id="`+op.OperationID+`">`)
			section, _, _ := strings.Cut(rest, "</details>")
			if !ok || !strings.Contains(strings.ReplaceAll(section, "<wbr>", ""), ">"+strings.ToUpper(method)+"</span>"+html.EscapeString(path)+"<") ||
				!strings.Contains(section, html.EscapeString(op.Summary)) || !strings.Contains(section, "curl") {
				t.Errorf("%s %s isn't on the page as it should be: %.300q", method, path, section)
			}
			for _, p := range op.Parameters {
				if !strings.Contains(section, "<code>"+p.Name+"</code>") {
					t.Errorf("%s %s: nothing of parameter %s", method, path, p.Name)
				}
			}
		}
	}
	if n < 20 {
		t.Errorf("the document has %d operations", n)
	}
	for _, example := range regexp.MustCompile(`-d &#39;(.*)&#39;`).FindAllStringSubmatch(page, -1) {
		if !json.Valid([]byte(html.UnescapeString(example[1]))) {
			t.Errorf("an example's body isn't JSON: %s", example[1])
		}
	}
}
