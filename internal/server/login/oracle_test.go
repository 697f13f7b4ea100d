package login_test

import (
	"regexp"
	"slices"
	"strings"
)

// who is a client as the documented rules of access control see it. The rules in this file are
// written again for the tests: nothing here calls package auth.
type who struct {
	account   bool // it is logged in
	robot     bool
	anonymous bool   // it has a registry token, without being logged in
	superuser bool   // it administers the registry
	role      string // "" for none
	where     string // scope of the role: "namespace", "repository" or "elsewhere"
	// actions and repositories limit a robot or a token. Nil: no such limit.
	actions, repositories []string
}

// place is what a request concerns: a repository, a namespace, or with neither the registry.
type place struct {
	namespace, repository string
	public                bool
	// own says that the place is the namespace with the name of the client's account.
	own bool
}

// roles are in the order in which each includes the ones before it.
var roles = []string{"", "reader", "writer", "maintainer", "administrator"}

// accesses has, for each access that a route may need, the smallest role that has it ("" if no
// role gives it) and the action to which a limit must agree.
var accesses = map[string]struct{ role, action string }{
	"any":      {"", ""},
	"ping":     {"", ""},
	"list":     {"", "pull"},
	"login":    {"", "admin"},
	"pull":     {"reader", "pull"},
	"hold":     {"reader", "hold"},
	"push":     {"writer", "push"},
	"delete":   {"maintainer", "delete"},
	"maintain": {"maintainer", "maintain"},
	"admin":    {"administrator", "admin"},
	"operate":  {"", "operate"},
}

// may says whether the client has an access to a place, if everybody may pull from public
// repositories.
func (w who) may(access string, p place) bool {
	need := accesses[access]
	switch {
	case access == "any":
		return true
	case access == "ping":
		return w.account || w.anonymous
	case w.actions != nil && !slices.Contains(w.actions, need.action):
		return false
	case w.repositories != nil && !(access == "list" && p.namespace == "") && !slices.Contains(w.repositories, p.repository):
		return false
	case access == "list":
		return true
	case access == "login":
		return w.account
	case w.superuser:
		return true
	case access == "operate", need.role == "":
		return false
	case access == "pull" && p.public:
		return true
	case p.namespace == "" || p.own:
		return false
	}
	here := w.where == "namespace" || w.where == "repository" && p.repository != ""
	return here && slices.Index(roles, w.role) >= slices.Index(roles, need.role)
}

// refuses says whether the handler of an operation refuses a client that has its access: nobody
// has an account to describe, and robots have no personal tokens and no sessions.
func (w who) refuses(method, pattern string) bool {
	if method != "GET" {
		return false
	}
	return pattern == "/api/v1/user" && !w.account ||
		w.robot && regexp.MustCompile(`^/api/v1/user/(apptoken|sessions)`).MatchString(pattern)
}

// rule says which accesses an operation may need, by its method and path.
type rule struct {
	method, path string // regular expressions
	access       []string
}

// rules says what the documentation promises about who may do what. The first rule that fits an
// operation of the management API counts. The last ones are for operations that no other rule
// names: what concerns the whole registry is for its administrators, and a change needs at
// least a maintainer.
var rules = []rule{
	{"GET", `^/(openapi\.(json|yaml)|error/\{error_type\}|user|)$`, []string{"any"}},
	{"GET", `^/(organization|repository)$`, []string{"list"}},
	{"GET", `^/organization/\{orgname\}$`, []string{"pull"}},
	{"GET", `^/organization/\{orgname\}/pull_statistics/history$`, []string{"pull"}},
	{"GET", `^/repository/\{repository\}/((tag/\{tag\}|manifest/\{digest\})/)?pull_statistics/history$`, []string{"pull"}},
	{"GET", `^/repository/\{repository\}/pull_statistics/top$`, []string{"pull"}},
	{"GET", `^/pull_statistics/(top|unpulled)$`, []string{"list"}},
	{"GET", `^/find/all$`, []string{"list"}},
	{"GET", `^/user/pull_statistics/history$`, []string{"login"}},
	{"GET", `^/pull_statistics/history$`, []string{"operate"}},
	{".*", `/starred(/|$)`, []string{"login", "pull"}},
	{"POST", `^/organization$`, []string{"login", "operate"}},
	{"POST", `^/repository$`, []string{"login", "push"}},
	{".*", `^/autoprune/runs?(/|$)`, []string{"maintain", "operate"}},
	{"POST", `^/trash/\{trash_id\}/purge$`, []string{"admin"}},
	{".*", `^/trash(/|$)`, []string{"delete"}},
	{"PUT", `^/repository/\{repository\}/tag/\{tag\}$`, []string{"push"}},
	{"POST", `^/repository/\{repository\}/tags/expire$`, []string{"push"}},
	{"POST", `^/repository/\{repository\}/tags/delete$`, []string{"delete"}},
	{"POST", `^/repository/\{repository\}/tags/restore$`, []string{"maintain"}},
	{"DELETE", `^/repository/\{repository\}(/tag/\{tag\}|/manifest/\{digest\})?$`, []string{"delete"}},
	{"POST", `/tag/\{tag\}/restore$`, []string{"maintain", "delete"}},
	{".*", `^/(organization/\{orgname\}|repository/\{repository\}|user)/(autoprunepolicy|tagprotection)(/|$)`, []string{"maintain"}},
	{".*", `^/(organization/\{orgname\}|repository/\{repository\}|user)/(aggregatelogs|logs)(/|$)`, []string{"maintain"}},
	{"GET", `^/logs(/export)?$`, []string{"login"}},
	{"GET", `^/(organization/\{orgname\}|user)/quota(/|$)`, []string{"maintain"}},
	{".*", `/quota(/|$)`, []string{"operate"}},
	{"PUT", `^/holds/`, []string{"hold"}},
	{"DELETE", `^/holds/`, []string{"delete"}}, // it ends holds, as a deletion does
	{".*", `^/holds(/|$)`, []string{"maintain"}},
	{".*", `/(changevisibility|webhooks?|robots?|members?|teams?|team|permissions|prototypes|collaborators|federation)(/|$)`, []string{"admin", "operate"}},
	{"DELETE", `^/organization/\{orgname\}$`, []string{"admin"}},
	{"GET", `^/repository/\{repository\}`, []string{"pull", "maintain", "admin"}},
	{".*", `^/(repository/\{repository\}|organization/\{orgname\})`, []string{"maintain", "admin", "operate"}},
	{".*", `^/user(/|$)`, []string{"login", "maintain", "admin"}},
	{".*", ``, []string{"operate"}},
}

// ruleOf returns the accesses that an operation of the management API may need.
func ruleOf(method, path string) []string {
	path = strings.TrimPrefix(path, "/api/v1")
	for _, r := range rules {
		if regexp.MustCompile("^(?:"+r.method+")$").MatchString(method) && regexp.MustCompile(r.path).MatchString(path) {
			return r.access
		}
	}
	return nil
}

// ruleOfDistribution has the access of each method of the OCI API below a repository. The
// routes about uploads need push, whatever the method.
var ruleOfDistribution = map[string]string{"GET": "pull", "HEAD": "pull", "POST": "push", "PUT": "push", "PATCH": "push", "DELETE": "delete"}

func ruleOfOCI(method, pattern string) string {
	switch {
	case pattern == "/v2/":
		return "ping"
	case pattern == "/v2/_catalog":
		return "list"
	case strings.Contains(pattern, "/uploads/"):
		return "push"
	}
	return ruleOfDistribution[method]
}
