package client

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog/trash"
)

// TestTrashByName: the commands of the trash take the names that "trash list" shows, as well as ids.
// A name that nothing or that several had is refused, and the ids are named. So is the name of a
// namespace that may be an id: nobody can tell which of two things is meant.
func TestTrashByName(t *testing.T) {
	t.Parallel()
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("namespace") == "repository-8" { // the client may not list that
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			w.Write([]byte(`{"status": 403, "detail": "no", "error_type": "insufficient_scope"}`)) //nolint:errcheck // the client notices
			return
		}
		page := map[string]any{"items": []trash.Trashed{{ID: "repository-1", Name: "team/app"}}, "next": "repository-1"}
		if r.URL.Query().Get("cursor") != "" {
			page = map[string]any{"items": []trash.Trashed{
				{ID: "repository-2", Name: "team/twice"}, {ID: "repository-3", Name: "team/twice"}, {ID: "namespace-4", Name: "old"},
				{ID: "namespace-6", Name: "repository-7"}, {ID: "repository-7", Name: "team/other"}}}
		}
		// The namespace of gone/app is in the trash too, so only the whole list has it.
		if r.URL.Query().Get("namespace") == "" && r.URL.Query().Get("cursor") == "" {
			page["items"] = append(page["items"].([]trash.Trashed), trash.Trashed{ID: "repository-5", Name: "gone/app"})
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(page) //nolint:errcheck // the client notices
	}))
	defer registry.Close()
	at, err := url.Parse(registry.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := api.NewClient(at)
	for arg, want := range map[string]string{
		"repository-9": "repository-9", "repository-8": "repository-8", "namespace-9": "namespace-9", "team/app": "repository-1", "old": "namespace-4", "gone/app": "repository-5",
	} {
		if got, err := trashID(t.Context(), c, arg); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %s", arg, got, err, want)
		}
	}
	for arg, want := range map[string]string{
		"team/none": "nothing in the trash", "team/twice": "repository-2, repository-3", "repository-7": "its id, namespace-6,",
	} {
		if _, err := trashID(t.Context(), c, arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}

// TestLimitIsKept: a list has no more items than --limit says, whatever size the route's pages
// have, and says that there are more.
func TestLimitIsKept(t *testing.T) {
	t.Parallel()
	pages := [][]int{{1, 2, 3, 4, 5}, {6, 7}}
	for limit, want := range map[int]int{0: 7, 1: 1, 3: 3, 5: 5, 6: 6, 7: 7, 9: 7} {
		i := 0
		list, more, err := api.Collect(limit, func(string, int) ([]int, string, error) {
			i++
			if i < len(pages) {
				return pages[i-1], "next", nil
			}
			return pages[i-1], "", nil
		})
		if err != nil || len(list) != want || more != (want < 7) {
			t.Errorf("limit %d: %v, more %v, %v", limit, list, more, err)
		}
	}
}
