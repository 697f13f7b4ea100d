package identity

import (
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	gitHub = "https://token.actions.githubusercontent.com"
	gitLab = "https://gitlab.com"
	k8s    = "https://oidc.eks.eu-central-1.amazonaws.com/id/EXAMPLED539D4633E53DE1B71EXAMPLE"
)

// The claims of tokens as their issuers document them.
const (
	gitHubClaims = `{"jti": "example-id", "sub": "repo:acme/app:ref:refs/heads/main", "aud": "registry.example.com",
		"ref": "refs/heads/main", "sha": "example-sha", "repository": "acme/app", "repository_owner": "acme",
		"actor_id": "12", "repository_visibility": "private", "repository_id": "74", "repository_owner_id": "65",
		"run_id": "example-run-id", "run_number": "10", "run_attempt": "2", "runner_environment": "github-hosted",
		"actor": "octocat", "workflow": "example-workflow", "head_ref": "", "base_ref": "", "event_name": "workflow_dispatch",
		"ref_type": "branch", "job_workflow_ref": "acme/app/.github/workflows/build.yml@refs/heads/main",
		"workflow_ref": "acme/app/.github/workflows/build.yml@refs/heads/main",
		"iss": "https://token.actions.githubusercontent.com", "nbf": 1632492967, "exp": 1632493867, "iat": 1632493567}`
	gitLabClaims = `{"namespace_id": "72", "namespace_path": "my-group", "project_id": "20", "project_path": "my-group/my-project",
		"user_id": "1", "user_login": "sample-user", "user_access_level": "developer",
		"user_identities": [{"provider": "github", "extern_uid": "2435223452345"}, {"provider": "bitbucket", "extern_uid": "john.smith"}],
		"pipeline_id": "574", "pipeline_source": "push", "job_id": "302", "ref": "feature-branch-1", "ref_type": "branch",
		"ref_path": "refs/heads/feature-branch-1", "ref_protected": "true", "groups_direct": ["mygroup/mysubgroup", "myothergroup"],
		"environment": "test-environment2", "environment_protected": "false", "runner_id": 1, "runner_environment": "self-hosted",
		"sha": "714a629c0b401fdce83e847fc9589983fc6f46bc", "project_visibility": "public",
		"ci_config_ref_uri": "gitlab.com/my-group/my-project//.gitlab-ci.yml@refs/heads/main", "jti": "235b3a54",
		"iss": "https://gitlab.com", "iat": 1681395193, "nbf": 1681395188, "exp": 1681398793,
		"sub": "project_path:my-group/my-project:ref_type:branch:ref:feature-branch-1", "aud": "https://registry.example.com"}`
	k8sClaims = `{"aud": ["registry.example.com", "other"], "exp": 1731613413, "iat": 1700077413,
		"iss": "https://oidc.eks.eu-central-1.amazonaws.com/id/EXAMPLED539D4633E53DE1B71EXAMPLE",
		"jti": "ea28ed49", "kubernetes.io": {"namespace": "my-namespace", "node": {"name": "my-node", "uid": "646e7c5e"},
		"pod": {"name": "my-pod", "uid": "5e0bd49b"}, "serviceaccount": {"name": "my-serviceaccount", "uid": "14ee3fa4"}, "warnafter": 1700081020},
		"nbf": 1700077413, "sub": "system:serviceaccount:my-namespace:my-serviceaccount"}`
)

func TestRulesOfRealIssuers(t *testing.T) {
	t.Parallel()
	type patterns = map[string]string
	for _, test := range []struct {
		token    string
		issuer   string
		audience string
		claims   patterns
		want     string // in the error, "" for a match
	}{
		{gitHubClaims, gitHub, "registry.example.com", patterns{"sub": "repo:acme/app:ref:refs/heads/*"}, ""},
		{gitHubClaims, gitHub, "registry.example.com", patterns{"sub": "repo:acme/app:**"}, ""},
		{gitHubClaims, gitHub, "registry.example.com", patterns{"sub": "repo:acme/*:ref:refs/heads/main"}, ""},
		{gitHubClaims, gitHub, "registry.example.com", patterns{"repository_owner_id": "65", "ref": "refs/heads/main", "run_attempt": "2"}, ""},
		{gitHubClaims, gitHub, "registry.example.com", patterns{"workflow_ref": "acme/app/.github/workflows/build.yml@refs/heads/*"}, ""},
		{gitHubClaims, gitHub, "registry.example.com", patterns{"sub": "repo:acme/app:*"}, `"sub"`},
		{gitHubClaims, gitHub, "registry.example.com", patterns{"sub": "repo:acme/ap:**"}, `"sub"`},
		{gitHubClaims, gitHub, "registry.example.com", patterns{"sub": "repo:acme/app:**", "environment": "production"}, `no claim "environment"`},
		{gitHubClaims, gitHub, "registry.example.com", patterns{"repository_owner": "acme", "ref": "refs/tags/*"}, `"ref"`},
		{gitHubClaims, gitHub, "https://github.com/acme", patterns{"sub": "repo:acme/app:**"}, "audience"},
		{gitHubClaims, gitLab, "registry.example.com", patterns{"sub": "project_path:acme/app:**"}, "issuer"},
		{gitLabClaims, gitLab, "https://registry.example.com", patterns{"project_path": "my-group/my-project", "ref_protected": "true"}, ""},
		{gitLabClaims, gitLab, "https://registry.example.com", patterns{"sub": "project_path:my-group/*:ref_type:branch:ref:*"}, ""},
		{gitLabClaims, gitLab, "https://registry.example.com", patterns{"namespace_id": "72", "groups_direct": "mygroup/*", "runner_id": "1"}, ""},
		{gitLabClaims, gitLab, "https://registry.example.com", patterns{"namespace_id": "7"}, `"namespace_id"`},
		{gitLabClaims, gitLab, "https://registry.example.com", patterns{"namespace_id": "72", "groups_direct": "my*"}, ""},
		{gitLabClaims, gitLab, "https://registry.example.com", patterns{"namespace_id": "72", "groups_direct": "group"}, `"groups_direct"`},
		{gitLabClaims, gitLab, "https://registry.example.com", patterns{"namespace_id": "72", "user_identities": "**"}, "neither"},
		{k8sClaims, k8s, "registry.example.com", patterns{"sub": "system:serviceaccount:my-namespace:*"}, ""},
		{k8sClaims, k8s, "other", patterns{"kubernetes.io.namespace": "my-namespace", "kubernetes.io.serviceaccount.name": "my-*"}, ""},
		{k8sClaims, k8s, "registry.example.com", patterns{"kubernetes.io.namespace": "kube-system"}, `"kubernetes.io.namespace"`},
		{k8sClaims, k8s, "registry.example.com", patterns{"kubernetes.io.pod.missing": "**"}, "no claim"},
		{k8sClaims, k8s, "registry.example.com", patterns{"kubernetes.io": "**"}, "neither"},
		{k8sClaims, k8s, "registry", patterns{"sub": "system:**"}, "audience"},
	} {
		claims, err := decode([]byte(test.token))
		must(t, err)
		r := Rule{test.issuer, test.audience, test.claims}
		err = r.Match(claims)
		if test.want == "" {
			must(t, r.check(false, []string{k8s}))
			if err != nil {
				t.Errorf("%v: %v", test.claims, err)
			}
			continue
		}
		wantError(t, err, ErrRefused, test.want)
	}
}

func TestGlob(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"repo:acme/app:ref:refs/heads/*", "repo:acme/app:ref:refs/heads/main", true},
		{"repo:acme/app:ref:refs/heads/*", "repo:acme/app:ref:refs/heads/", true},
		{"repo:acme/app:ref:refs/heads/*", "repo:acme/app:ref:refs/heads/feature/x", false},
		{"repo:acme/app:ref:refs/heads/**", "repo:acme/app:ref:refs/heads/feature/x", true},
		{"repo:acme/app:ref:refs/heads/*", "repo:acme/app-evil:ref:refs/heads/main", false},
		{"repo:acme/app:ref:refs/heads/*", "xrepo:acme/app:ref:refs/heads/main", false},
		{"repo:acme/app", "repo:acme/app-evil", false}, {"repo:acme/app", "repo:acme/app\n", false}, {"repo:acme/app", "repo:acme/app", true},
		{"repo:acme/*", "repo:acme/app/x", false}, {"repo:acme/**", "repo:acme/app/x", true},
		{"acme*", "acme-evil", true}, {"acme*", "acme/app", false},
		{"*", "", true}, {"*", "a\nb", true}, {"**", "a/\nb", true}, {"*", "a/b", false}, {"***", "a/b", true},
		{"a.c", "abc", false}, {"a+", "aa", false}, {"[a]", "a", false}, {`a\E.*`, "ab", false}, {"A", "a", false}, {"?", "x", false},
		{"**/x", "a/b/x", true}, {"**/x", "x", false}, {"a*b*c", "a12b34c", true}, {"a*b*c", "a12b/4c", false},
		{"\xff", "\uFFFD", false},
	} {
		if got := glob(test.pattern)(test.text); got != test.want {
			t.Errorf("%q matches %q: %t, want %t", test.pattern, test.text, got, test.want)
		}
	}
}

func TestCheckRule(t *testing.T) {
	t.Parallel()
	type patterns = map[string]string
	sub := patterns{"sub": "x"}
	verifier := NewVerifier(VerifierOptions{OwnIssuers: []string{"https://own.example.com"}})
	for _, test := range []struct {
		issuer, audience string
		claims           patterns
		want             string
	}{
		{"https://id.example.com", "a", sub, ""},
		{"https://id.example.com/realms/ci", "a", patterns{"kubernetes.io.namespace": "x*"}, "own_issuers"},
		{"https://id.example.com", "a", patterns{"sub": "org:acme:*"}, "own_issuers"},
		{"https://id.example.com", "a", patterns{"email": "a@example.com"}, "own_issuers"},
		{"https://own.example.com", "a", patterns{"kubernetes.io.namespace": "x*"}, ""},
		{"https://own.example.com/", "a", patterns{"sub": "org:acme:*"}, ""},
		{"https://own.example.com/other", "a", patterns{"sub": "org:acme:*"}, "own_issuers"},
		{"http://id.example.com", "a", sub, "https"},
		{"ftp://id.example.com", "a", sub, "https"},
		{"id.example.com", "a", sub, "must be a URL"},
		{"https://", "a", sub, "must be a URL"},
		{"", "a", sub, "must be a URL"},
		{"https://id.example.com?x", "a", sub, "without"}, {"https://id.example.com?", "a", sub, "without"},
		{"https://id.example.com#x", "a", sub, "without"}, {"https://id.example.com#", "a", sub, "without"},
		{"https://u:p@id.example.com", "a", sub, "without"},
		{"https://id.example.com", "", sub, "audience"},
		{"https://id.example.com", "a", nil, "at least one claim"},
		{"https://id.example.com", "a", patterns{"sub": "*"}, "at least one claim"},
		{"https://id.example.com", "a", patterns{"sub": "**/*:*"}, "at least one claim"},
		{"https://id.example.com", "a", patterns{"iss": "https://id.example.com", "aud": "a"}, "at least one claim"},
		{"https://id.example.com", "a", patterns{"sub": ""}, "1 to 512"},
		{"https://id.example.com", "a", patterns{"": "x"}, "1 to 512"},
		{"https://id.example.com", "a", patterns{"sub": "\xff"}, "UTF-8"},
		{"https://id.example.com", "a", patterns{"sub": strings.Repeat("x", 513)}, "1 to 512"},

		// Anybody can get tokens of these issuers.
		{gitHub, "a", patterns{"sub": "repo:acme/app:ref:refs/heads/*"}, ""},
		{gitHub, "a", patterns{"sub": "repo:acme@12/app@34:environment:production"}, ""},
		{gitHub, "a", patterns{"sub": "repository_owner_id:65:**"}, ""},
		{gitHub, "a", patterns{"repository": "acme/*", "ref": "refs/heads/main"}, ""},
		{gitHub, "a", patterns{"repository_owner": "acme"}, ""},
		{gitHub, "a", patterns{"sub": "repo:*/app:ref:refs/heads/main"}, "name the owner"},
		{gitHub, "a", patterns{"sub": "repo:acme*/app:**"}, "name the owner"},
		{gitHub, "a", patterns{"sub": "repo:acme*"}, "name the owner"},
		{gitHub, "a", patterns{"sub": "**acme/app:**"}, "name the owner"},
		{gitHub, "a", patterns{"sub": "environment:production"}, "name the owner"},
		{gitHub, "a", patterns{"repository_owner": "acme*"}, "name the owner"},
		{gitHub, "a", patterns{"repository": "acme*"}, "name the owner"},
		{gitHub, "a", patterns{"ref": "refs/heads/main"}, "name the owner"},
		{gitHub, "a", patterns{"job_workflow_ref": "acme/app/.github/workflows/build.yml@refs/heads/main"}, "name the owner"},
		{gitHub + "/", "a", patterns{"ref": "refs/heads/main"}, "name the owner"},
		{gitHub + "/acme-enterprise", "a", patterns{"ref": "refs/heads/main"}, ""}, // an enterprise's own
		{gitLab, "a", patterns{"sub": "project_path:acme/app:**"}, ""},
		{gitLab, "a", patterns{"sub": "project_path:*/app:**"}, "name the owner"},
		{gitLab, "a", patterns{"ref_protected": "true"}, "name the owner"},
		{"https://agent.buildkite.com", "a", patterns{"sub": "organization:acme:pipeline:app:**"}, ""},
		{"https://agent.buildkite.com", "a", patterns{"sub": "organization:acme*"}, "name the owner"},
		{"https://accounts.google.com", "a", patterns{"email": "*@example.com"}, "name the owner"},
		{"https://oauth2.sigstore.dev/auth", "a", patterns{"email": "*@example.com"}, "name the owner"},
		{"https://oauth2.sigstore.dev/auth", "a", patterns{"email": "a@example.com"}, ""},
		{"https://api.pulumi.com/oidc", "a", patterns{"sub": "pulumi:deploy:org:*"}, "name the owner"},
		{"https://api.pulumi.com/oidc", "a", patterns{"sub": "pulumi:deploy:org:acme:project:app:**"}, ""},
		{"https://oidc.codefresh.io", "a", patterns{"sub": "account:*:pipeline:1:**"}, "name the owner"},
		{"https://oidc.codefresh.io", "a", patterns{"sub": "account:12:pipeline:1:**"}, ""},
		{gitHub + "/", "a", patterns{"sub": "**"}, "at least one claim"},
	} {
		err := verifier.CheckRule(Rule{test.issuer, test.audience, test.claims})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s %v: %v, want %q", test.issuer, test.claims, err, test.want)
		}
	}
	plain := Rule{"http://kubernetes.default.svc", "a", sub}
	must(t, NewVerifier(VerifierOptions{AllowPrivate: true}).CheckRule(plain))
	if NewVerifier(VerifierOptions{}).CheckRule(plain) == nil {
		t.Error("an issuer without TLS is allowed")
	}
	many := patterns{}
	for i := range 21 {
		many[strings.Repeat("x", i+1)] = "x"
	}
	if (Rule{"https://id.example.com", "a", many}).Check() == nil {
		t.Error("21 claims are allowed")
	}
}

func TestLookup(t *testing.T) {
	t.Parallel()
	claims, err := decode([]byte(`{"a": {"b": {"c": 1}, "b.c": 2, "n": null}, "a.b": {"d": 12345678901234567890}, "x.y": true, "x": {"y": false}, "n": null}`))
	must(t, err)
	for name, want := range map[string]string{
		"a.b.c": "2", "a.b.d": "12345678901234567890", "x.y": "true", "n": "", "a.n": "", "a.b": "", "a": "", "": "", ".": "", "a.": "", "x.y.z": "",
	} {
		value, _ := lookup(claims, name)
		if got, _ := text(value); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// FuzzGlob compares glob with a slow matcher that is plainly right.
func FuzzGlob(f *testing.F) {
	for _, seed := range [][2]string{{"a*b", "axb"}, {"**/x", "a/x"}, {"***", ""}, {"*", "/"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(pattern) > 12 || len(text) > 12 || !utf8.ValidString(pattern) || !utf8.ValidString(text) {
			return // not UTF-8, or slow
		}
		if got, want := glob(pattern)(text), slowGlob(pattern, text); got != want {
			t.Errorf("%q matches %q: %t, want %t", pattern, text, got, want)
		}
	})
}

func slowGlob(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case strings.HasPrefix(pattern, "**"):
		return slowGlob(pattern[2:], text) || text != "" && slowGlob(pattern, text[1:])
	case pattern[0] == '*':
		return slowGlob(pattern[1:], text) || text != "" && text[0] != '/' && slowGlob(pattern, text[1:])
	}
	return text != "" && text[0] == pattern[0] && slowGlob(pattern[1:], text[1:])
}
