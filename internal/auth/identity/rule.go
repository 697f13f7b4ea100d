package identity

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Rule says which tokens of pipelines may log in as a robot.
type Rule struct {
	// Issuer is the claim iss, character for character. It is an https URL, at which the
	// issuer's discovery document is found.
	Issuer string
	// Audience must be contained in the claim aud. It should be the registry's own name: a token
	// for another service isn't meant to open this one.
	Audience string
	// Claims has patterns by names of claims. Every claim must exist and match.
	//
	// In a pattern, * stands for any characters except "/", also for none; ** stands for any
	// characters. All other characters stand for themselves, and the whole claim must match. So
	// repo:acme/app:ref:refs/heads/* matches each branch of acme/app whose name has no "/", and no
	// branch of acme/app-evil; repo:acme/app:ref:refs/heads/** matches all branches.
	//
	// A name "a.b" is the claim "a.b" if there is one, else the member "b" of the claim "a", such
	// as kubernetes.io.namespace. Numbers and booleans are compared as text. Of a list, one
	// element must match.
	Claims map[string]string
}

// Limits of a rule, in bytes, and the number of its claims.
const (
	maxRuleText   = 512
	maxRuleClaims = 20
)

// technical are the claims that say nothing about who uses a token: Verify checks most of them,
// and every token of the issuer has some.
var technical = []string{"iss", "aud", "exp", "nbf", "iat", "jti"}

// An owner is a pattern of a claim that allows only one owner's pipelines: the name of the owner
// has no wildcard, and its end is marked.
var (
	ownerWhole  = regexp.MustCompile(`^[^*]+$`)
	ownerPath   = regexp.MustCompile(`^[^*/]+/`)
	ownerGitHub = regexp.MustCompile(`^(repo|repository):[^*/:]+/|^repository_(owner|owner_id|id):[^*:]+(:|$)`)
	ownerGitLab = regexp.MustCompile(`^project_path:[^*/:]+/|^project_id:[^*:]+(:|$)`)
	ownerOrg    = regexp.MustCompile(`^organization:[^*:]+(:|$)`)
	ownerPulumi = regexp.MustCompile(`^pulumi:(deploy|environments):org:[^*:]+(:|$)`)
	ownerFresh  = regexp.MustCompile(`^account:[^*:]+(:|$)`)
)

// owners are, of well-known issuers that issue tokens to anybody with an account there, the claims
// of which one is needed to tell owners apart. Other claims, such as the branch, are the same for
// strangers' pipelines. A reusable workflow of GitHub (job_workflow_ref) may be used by strangers
// too.
var owners = map[string]map[string]*regexp.Regexp{
	"https://token.actions.githubusercontent.com": {
		"sub": ownerGitHub, "repository": ownerPath, "workflow_ref": ownerPath, "repository_id": ownerWhole,
		"repository_owner": ownerWhole, "repository_owner_id": ownerWhole,
	},
	"https://gitlab.com": {
		"sub": ownerGitLab, "project_path": ownerPath, "project_id": ownerWhole, "namespace_id": ownerWhole, "namespace_path": ownerWhole,
	},
	"https://agent.buildkite.com": {
		"sub": ownerOrg, "organization_slug": ownerWhole, "organization_id": ownerWhole, "pipeline_id": ownerWhole,
	},
	"https://app.terraform.io": {
		"sub": ownerOrg, "terraform_organization_id": ownerWhole, "terraform_organization_name": ownerWhole, "terraform_workspace_id": ownerWhole,
	},
	"https://accounts.google.com":      {"sub": ownerWhole, "email": ownerWhole},
	"https://oauth2.sigstore.dev/auth": {"sub": ownerWhole, "email": ownerWhole},
	"https://api.pulumi.com/oidc":      {"sub": ownerPulumi},
	"https://oidc.codefresh.io":        {"sub": ownerFresh, "account_id": ownerWhole},
}

// unknownOwners tells owners apart where nothing is known of the issuer: by the whole subject.
var unknownOwners = map[string]*regexp.Regexp{"sub": ownerWhole}

// enterprises begin the issuers that GitHub gives to one enterprise each.
const enterprises = "https://token.actions.githubusercontent.com/"

// Check returns an error, with the way out, if the rule isn't valid or lets strangers in: of an
// issuer, strangers may have tokens too, unless it is one of OwnIssuers. It sends no request. Use
// [Verifier.CheckRule] for rules with issuers that need AllowPrivate or OwnIssuers.
func (r Rule) Check() error { return r.check(false, nil) }

// CheckRule checks a rule as its method Check does. If AllowPrivate is set, issuers without TLS
// are valid.
func (v *Verifier) CheckRule(r Rule) error { return r.check(v.o.AllowPrivate, v.o.OwnIssuers) }

func (r Rule) check(allowHTTP bool, own []string) error {
	if err := checkIssuer(r.Issuer, allowHTTP); err != nil {
		return err
	}
	switch {
	case r.Audience == "" || len(r.Audience) > maxRuleText:
		return fmt.Errorf("the audience must have 1 to %d bytes; use the registry's host name, and request tokens for it", maxRuleText)
	case len(r.Claims) > maxRuleClaims:
		return fmt.Errorf("there are %d claims, %d are possible", len(r.Claims), maxRuleClaims)
	}
	narrow := false
	for _, name := range slices.Sorted(maps.Keys(r.Claims)) {
		pattern := r.Claims[name]
		if name == "" || pattern == "" || len(name) > maxRuleText || len(pattern) > maxRuleText || !utf8.ValidString(pattern) {
			return fmt.Errorf("the claim %s: a name and a pattern must have 1 to %d bytes of UTF-8 each", excerpt(name), maxRuleText)
		}
		narrow = narrow || !slices.Contains(technical, name) && strings.Trim(pattern, "*/:.-_@ ") != ""
	}
	if !narrow {
		return errors.New(`name at least one claim, such as sub, with a pattern that isn't just "*"; else every pipeline of the issuer could log in`)
	}
	return r.checkOwner(own)
}

// checkOwner returns an error if strangers may have tokens that the rule matches.
func (r Rule) checkOwner(own []string) error {
	issuer := strings.TrimSuffix(r.Issuer, "/")
	if slices.ContainsFunc(own, func(s string) bool { return strings.TrimSuffix(s, "/") == issuer }) ||
		strings.HasPrefix(issuer, enterprises) && len(issuer) > len(enterprises) {
		return nil
	}
	claims, known := owners[issuer]
	if !known {
		claims = unknownOwners
	}
	for name, owner := range claims {
		if owner.MatchString(r.Claims[name]) {
			return nil
		}
	}
	if !known {
		return fmt.Errorf("others may have tokens of %s too; name the claim sub without a wildcard, or ask the registry's operator to add the issuer to auth.federation.own_issuers if only your own pipelines get its tokens", r.Issuer)
	}
	return fmt.Errorf("anybody can get tokens of %s; name the owner without a wildcard, in one of the claims %s (such as repo:acme/app:** in sub for GitHub, project_path:acme/app:** for GitLab)",
		r.Issuer, strings.Join(slices.Sorted(maps.Keys(claims)), ", "))
}

// checkIssuer returns an error if an issuer can't be one.
func checkIssuer(issuer string, allowHTTP bool) error {
	u, err := url.Parse(issuer)
	switch {
	case err != nil || u.Hostname() == "" || len(issuer) > maxRuleText:
		return errors.New("the issuer must be a URL such as https://token.actions.githubusercontent.com")
	case u.Scheme != "https" && !(allowHTTP && u.Scheme == "http"):
		return fmt.Errorf("the issuer %s isn't an https URL", excerpt(issuer))
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.User != nil || strings.HasSuffix(issuer, "#"):
		return errors.New("the issuer must be a URL without a user, a query and a fragment")
	}
	return nil
}

// concerns says whether a token with the claims could satisfy the rule, by its issuer and
// audience.
func (r Rule) concerns(claims map[string]any) bool {
	issuer, ok := claims["iss"].(string)
	audience, err := texts(claims["aud"])
	return ok && err == nil && issuer == r.Issuer && slices.Contains(audience, r.Audience)
}

// Match returns nil if verified claims satisfy the rule, else an ErrRefused that names the first
// claim that doesn't. The error has the token's claim, but not the rule's pattern, which a client
// without access to the namespace isn't to see.
func (r Rule) Match(claims map[string]any) error {
	if !r.concerns(claims) {
		return refused("the token's issuer or audience isn't that of the rule")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Claims)) {
		value, ok := lookup(claims, name)
		if !ok {
			return refused("the token has no claim %q, which the rule names", name)
		}
		elements, err := texts(value)
		if err != nil {
			return refused("the token's claim %q can't be compared: %v", name, err)
		}
		if !slices.ContainsFunc(elements, glob(r.Claims[name])) {
			return refused("the token's claim %q is %s, which the rule doesn't allow", name, excerpt(strings.Join(elements, " ")))
		}
	}
	return nil
}

// glob returns a function that says whether a text matches a pattern of Rule.Claims. It needs
// linear time, as Go's regular expressions do.
func glob(pattern string) func(string) bool {
	var b strings.Builder
	b.WriteString(`\A`)
	for i, rest := range strings.Split(pattern, "**") {
		if i > 0 {
			b.WriteString(`(?s:.*)`)
		}
		for j, literal := range strings.Split(rest, "*") {
			if j > 0 {
				b.WriteString(`[^/]*`)
			}
			b.WriteString(regexp.QuoteMeta(literal))
		}
	}
	b.WriteString(`\z`)
	re, err := regexp.Compile(b.String())
	if err != nil { // it isn't UTF-8
		return func(string) bool { return false }
	}
	return re.MatchString
}
