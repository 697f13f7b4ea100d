package token

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

func repository(name string, actions ...string) Access {
	return Access{Type: "repository", Name: name, Actions: append([]string{}, actions...)}
}

// TestParseScopes has the requests of clients: docker, containerd, skopeo, crane, regclient and
// oras.
func TestParseScopes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scopes []string
		want   []Access
	}{
		"none":               {nil, nil},
		"empty":              {[]string{"", "  "}, nil},
		"docker pull":        {[]string{"repository:library/alpine:pull"}, []Access{repository("library/alpine", "pull")}},
		"docker push":        {[]string{"repository:a/b:push,pull"}, []Access{repository("a/b", "push", "pull")}},
		"docker mount":       {[]string{"repository:a/b:push,pull", "repository:c/d:pull"}, []Access{repository("a/b", "push", "pull"), repository("c/d", "pull")}},
		"docker plugin":      {[]string{"repository(plugin):a/b:pull"}, []Access{repository("a/b", "pull")}},
		"containerd":         {[]string{"repository:a:pull", "repository:a:pull,push"}, []Access{repository("a", "pull", "push")}},
		"skopeo list":        {[]string{"registry:catalog:*"}, []Access{{Type: "registry", Name: "catalog", Actions: []string{"*"}}}},
		"skopeo delete":      {[]string{"repository:a/b:*"}, []Access{repository("a/b", "*")}},
		"crane copy":         {[]string{"repository:a/b:push,pull", "repository:a/c:pull", "repository:a/b:pull"}, []Access{repository("a/b", "push", "pull"), repository("a/c", "pull")}},
		"oras delete":        {[]string{"repository:a/b:delete,pull,push"}, []Access{repository("a/b", "delete", "pull", "push")}},
		"by spaces":          {[]string{"repository:a:pull  repository:b:push repository:a:push"}, []Access{repository("a", "pull", "push"), repository("b", "push")}},
		"plugin and plain":   {[]string{"repository(plugin):a:pull repository:a:push"}, []Access{repository("a", "pull", "push")}},
		"duplicated actions": {[]string{"repository:a:pull,pull,,push,pull"}, []Access{repository("a", "pull", "push")}},
		"no actions":         {[]string{"repository:a:"}, []Access{repository("a")}},
		"commas only":        {[]string{"repository:a:,,"}, []Access{repository("a")}},
		"odd actions":        {[]string{"repository:a:PULL,pu\tll,p\u00fcll,pull*,**,-pull,pull"}, []Access{repository("a", "pull")}},
		"dashed action":      {[]string{"repository:a:scanner-pull"}, []Access{repository("a", "scanner-pull")}},
		"host and port":      {[]string{"repository:localhost:5000/a/b:pull"}, []Access{repository("localhost:5000/a/b", "pull")}},
		"host of IPv6":       {[]string{"repository:[::1]:5000/a:pull"}, []Access{repository("[::1]:5000/a", "pull")}},
		"colons":             {[]string{"repository:a:pull:push"}, []Access{repository("a:pull", "push")}},
		"another type":       {[]string{"artifact:a:pull"}, []Access{{Type: "artifact", Name: "a", Actions: []string{"pull"}}}},
		"no scopes":          {[]string{"openid", "aws", ":", "::", ":::", "repository", "repository:", "repository:a", "repository::pull", "a b", ":a:pull"}, nil},
		"odd types":          {[]string{"Repository:a:pull", "repository():a:pull", "repository(plugin:a:pull", "repository(a)b:a:pull", "reposi\ttory:a:pull", strings.Repeat("r", 33) + ":a:pull"}, nil},
		"control characters": {[]string{"repository:a\tb:pull", "repository:a\x00:pull", "repository:\u00e4:pull", "repository:a\n:pull"}, nil},
		"names of the limit": {[]string{"repository:" + strings.Repeat("a", 255) + ":pull"}, []Access{repository(strings.Repeat("a", 255), "pull")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseScopes(c.scopes)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestParseScopesLimits(t *testing.T) {
	t.Parallel()
	many := make([]string, 101)
	for i := range many {
		many[i] = "repository:a:pull"
	}
	if _, err := ParseScopes(many[:100]); err != nil {
		t.Errorf("100 scopes: %v", err)
	}
	actions := make([]string, 17)
	for i := range actions {
		actions[i] = strings.Repeat("a", i+1)
	}
	if _, err := ParseScope("repository:a:" + strings.Join(actions[:16], ",")); err != nil {
		t.Errorf("16 actions: %v", err)
	}
	for name, scopes := range map[string][]string{
		"scopes":           many,
		"scopes in one":    {strings.Join(many, " ")},
		"ignored scopes":   {strings.Repeat("x ", 101)},
		"bytes":            {strings.Repeat(" ", 32<<10), "x"},
		"a name":           {"repository:" + strings.Repeat("a", 256) + ":pull"},
		"actions":          {"repository:a:" + strings.Join(actions, ",")},
		"an action":        {"repository:a:" + strings.Repeat("a", 33)},
		"actions together": {"repository:a:" + strings.Join(actions[:9], ","), "repository:a:" + strings.Join(actions[8:], ",")},
	} {
		if got, err := ParseScopes(scopes); !errors.Is(err, ErrScope) || got != nil {
			t.Errorf("%s: got %v, %v; want an error", name, got, err)
		}
	}
}

func TestRepositoryOfAccess(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "a/b", "a.b/c__d/e---f"} {
		if got, ok := repository(name, "pull").Repository(); !ok || got != name {
			t.Errorf("%q: got %q, %v", name, got, ok)
		}
	}
	for _, name := range []string{"", "A", "a//b", "/a", "a/", "../a", "a/../b", "localhost:5000/a", "a:pull", "a*", "*", "a%2fb", `a"b`, "a\x00"} {
		if got, ok := repository(name, "pull").Repository(); ok || got != "" {
			t.Errorf("%q: got %q, %v; want no repository", name, got, ok)
		}
	}
	if _, ok := (Access{Type: "registry", Name: "a"}).Repository(); ok {
		t.Error("an access to the registry is one to a repository")
	}
	if !(Access{Type: "registry", Name: "catalog"}).Catalog() || repository("catalog").Catalog() || (Access{Type: "registry", Name: "a"}).Catalog() {
		t.Error("only registry:catalog is the catalog")
	}
}

// FuzzParseScopes checks that the result is within the limits, has each resource and action
// once, and is the same when it is written as scopes and parsed again.
func FuzzParseScopes(f *testing.F) {
	f.Add("repository:a/b:push,pull", "registry:catalog:*")
	f.Add("repository(plugin):localhost:5000/a:pull,,pull repository:a:*", "")
	f.Add(":::", "repository:a:\x00,*")
	f.Fuzz(func(t *testing.T, first, second string) {
		list, err := ParseScopes([]string{first, second})
		if err != nil {
			if !errors.Is(err, ErrScope) || list != nil {
				t.Fatalf("got %v, %v", list, err)
			}
			return
		}
		seen := map[string]bool{}
		var scopes []string
		for _, a := range list {
			resource := a.Type + ":" + a.Name
			if seen[resource] || a.Name == "" || len(a.Name) > 255 || len(a.Actions) > 16 || !strings.Contains(first+" "+second, a.Name) {
				t.Fatalf("resource %q with %d actions", resource, len(a.Actions))
			}
			seen[resource] = true
			for _, action := range a.Actions {
				if key := resource + ":" + action; seen[key] || !isAction(action) {
					t.Fatalf("action %q", key)
				} else {
					seen[key] = true
				}
			}
			if path, ok := a.Repository(); ok && oci.ValidateName(path) != nil {
				t.Fatalf("%q is taken as a repository", path)
			}
			scopes = append(scopes, fmt.Sprintf("%s:%s", resource, strings.Join(a.Actions, ",")))
		}
		if len(list) > 100 {
			t.Fatalf("%d resources", len(list))
		}
		again, err := ParseScope(strings.Join(scopes, " "))
		if err != nil && len(strings.Join(scopes, " ")) <= maxScopeBytes || err == nil && !reflect.DeepEqual(list, again) {
			t.Fatalf("got %v, then %v, %v", list, again, err)
		}
	})
}
