//go:build all

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// mostSteps is how many pages any job may take from the first one.
const mostSteps = 4

// job is what somebody does in the web UI, with the keys of a keyboard, from its first page on.
type job struct {
	name string
	do   func()
	// get is a path of the management API, and has what its answer contains then. "": do looks at the page.
	get, has string
	// lacks is what the answer doesn't contain.
	lacks string
}

// TestUIJobs does each job in a window 390 px wide by the keyboard alone, and counts the pages on the way: those
// that a link or a form leads to. docs/web-ui.md lists these numbers.
func TestUIJobs(t *testing.T) {
	hooks := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(hooks.Close)
	r, _ := startClosed(t, "PURSER_WEBHOOKS_ALLOW_PRIVATE=true", "PURSER_AUTOPRUNE_INTERVAL=1h")
	push, blob := pushers(t, r, map[string]string{"Authorization": basic("admin", accountPassword)})
	fillForPages(t, r, push, blob)
	page, err := os.ReadFile("../docs/web-ui.md")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*time.Minute, func() error { // sizes are measured again a minute after the registry was empty
		a, err := r.API().do(t.Context(), request{method: "GET", path: "/api/v1/organization/acme/usage", want: http.StatusOK,
			header: map[string]string{"Authorization": basic("admin", accountPassword)}})
		if err == nil && !strings.Contains(string(a.body), `"acme/web"`) {
			err = errors.New("the content of acme isn't measured")
		}
		return err
	})
	p := newTypist(t, r, "admin")
	jobs := append(namespaceJobs(p, hooks.URL), append(repositoryJobs(p), registryJobs(p)...)...)
	if len(jobs) < 30 {
		t.Errorf("there are %d jobs, want at least 30", len(jobs))
	}
	var table strings.Builder
	for _, j := range jobs {
		t.Run(j.name, func(t *testing.T) {
			defer func(whole *testing.T) { p.browser.t = whole }(p.browser.t)
			p.browser.t = t
			p.browser.open(r.URL() + "/ui/")
			p.pages.Store(0)
			j.do()
			steps := p.pages.Load()
			if steps > mostSteps {
				t.Errorf("it takes %d pages, want at most %d", steps, mostSteps)
			}
			fmt.Fprintf(&table, "| %s | %d |\n", j.name, steps)
			p.checkPage(j.name)
			if j.get == "" {
				return
			}
			answer := string(r.administer(t, "GET", j.get, "", http.StatusOK))
			if !strings.Contains(answer, j.has) {
				t.Errorf("%s answers %s, want %q; the page says: %s", j.get, answer, j.has, p.text())
			}
			if j.lacks != "" && strings.Contains(answer, j.lacks) {
				t.Errorf("%s answers %s, want none of %q", j.get, answer, j.lacks)
			}
		})
	}
	if !strings.Contains(string(page), "| Job | Pages |\n|---|---|\n"+table.String()) {
		t.Errorf("docs/web-ui.md has another table than this:\n%s", table.String())
	}
}

// shows waits until the page shows the text, which a part of it that renews itself may bring.
func (p typist) shows(text string) {
	p.t.Helper()
	p.wait("the page shows "+text, fmt.Sprintf(`document.body.innerText.includes(%q)`, text))
}

// namespaceJobs are those in the namespace acme.
func namespaceJobs(p typist, hooks string) []job {
	at := func(tab string, do func()) func() {
		return func() {
			p.t.Helper()
			p.press("acme")
			p.press(tab)
			do()
		}
	}
	return []job{
		{name: "Create a namespace with a quota", get: "/organization/tools/quota", has: "10485760", do: func() {
			p.menu("Namespaces")
			p.unfold("Create a namespace")
			p.fill("Name", "tools")
			p.fill("Bytes", "10MiB")
			p.press("Create the namespace")
		}},
		{name: "Give an account a role in a namespace", get: "/organization/acme/permissions/user", has: `"stranger"`, do: at("Settings", func() {
			p.fill("Named", "stranger")
			p.pick("The role", "maintainer")
			p.press("Add")
		})},
		{name: "Set a quota", get: "/organization/acme/quota", has: "5368709120", do: at("Settings", func() {
			p.fill("Bytes", "5GiB")
			p.press("Save quota")
		})},
		{name: "Protect the tags of a namespace", get: "/organization/acme/tagprotection", has: `^rel-`, do: at("Settings", func() {
			p.fill("Protect tags that match", "^rel-")
			p.press("Protect")
		})},
		{name: "Make a robot and read the line by which Docker logs in", get: "/organization/acme/robots/builds", has: `"acme+builds"`, do: at("Robots", func() {
			p.unfold("Create a robot")
			p.fill("Name after acme+", "builds")
			p.press("Create")
			p.shows("docker login")
		})},
		{name: "Give a robot a role", get: "/organization/acme/permissions/user", has: `"acme+builds"`, do: at("Robots", func() {
			p.press("acme+builds")
			p.pick("Give the role", "writer")
			p.pick("In", "the whole namespace")
			p.press("Give")
		})},
		{name: "Let the jobs of a pipeline log in as a robot", get: "/organization/acme/robots/builds/federation", has: `"repo:acme/app:ref:refs/heads/main"`, do: at("Robots", func() {
			p.press("acme+builds")
			p.unfold("Add a rule")
			p.fill("Issuer, the claim iss", "https://token.actions.githubusercontent.com")
			p.fill("Subject, a pattern of the claim sub", "repo:acme/app:ref:refs/heads/main")
			p.fill("Audience, in the claim aud (empty: the host of the registry's external URL)", "registry.example.com")
			p.press("Add the rule")
		})},
		{name: "Make a team with a role", get: "/organization/acme/team/crew/members", has: `"members"`, do: at("Teams", func() {
			p.unfold("Create a team")
			p.fill("Name", "crew")
			p.press("Create")
		})},
		{name: "Put an account into a team", get: "/organization/acme/team/crew/members", has: `"reader"`, do: at("Teams", func() {
			p.fill("Account", "reader")
			p.press("Add to crew")
		})},
		{name: "Make a webhook", get: "/organization/acme/webhook", has: hooks, do: at("Webhooks", func() {
			p.unfold("Make a webhook")
			p.fill("URL that is told", hooks)
			p.fill("Title (may be empty)", "deploys")
			p.to("push: a manifest is pushed")
			p.toggle()
			p.press("Make the webhook")
		})},
		{name: "Try a webhook and see the answer", do: at("Webhooks", func() {
			p.press("deploys")
			p.press("Send a test notice")
			p.shows("a status from 200 to 299")
		})},
		{name: "See what a policy would delete, before it is saved", do: func() {
			p.press("acme")
			p.press("Make a policy")
			p.pick("Which tags", "are not among the newest")
			p.fill("Newest tags that stay", "3")
			p.shows("58")
		}},
		{name: "Make a policy", get: "/organization/acme/autoprunepolicy", has: `"creation_date"`, do: func() {
			p.press("acme")
			p.press("Make a policy")
			p.press("Save policy")
			p.press("Save all the same") // it would delete a tag named latest
		}},
		{name: "See what a namespace stores", do: at("Storage", func() {
			p.to("acme/web")
		})},
	}
}

// repositoryJobs are those in repositories.
func repositoryJobs(p typist) []job {
	const web = "/repository/acme/web/tag"
	tag := func(name string, do func()) func() {
		return func() {
			p.t.Helper()
			p.press("acme/web")
			p.press(name)
			do()
		}
	}
	return []job{
		{name: "Create a repository", get: "/repository/acme/new", has: `"new"`, do: func() {
			p.menu("Repositories")
			p.unfold("Create a repository")
			p.fill("Namespace", "acme")
			p.fill("Name", "new")
			p.press("Create the repository")
		}},
		{name: "Change who may pull", get: "/repository/acme/web", has: `"is_public":true`, do: func() {
			p.press("acme/web")
			p.press("Settings")
			p.pick("Visibility", "public: everybody")
			p.press("Save")
		}},
		{name: "Move a tag", get: web + "?specificTag=pr-59", has: `"pr-59"`, do: tag("pr-59", func() {
			p.fill("To a digest, or to where another tag points", "pr-58")
			p.press("Move the tag")
			p.shows("points to")
		})},
		{name: "Let a tag expire", get: web + "?specificTag=pr-57", has: `"expiration"`, do: tag("pr-57", func() {
			p.fill("Delete it after (2w, 3d, 12h)", "2w")
			p.press("Show the date")
			p.press("Set this date")
		})},
		{name: "Protect a tag", get: "/repository/acme/web/tagprotection", has: `^pr-56$`, do: tag("pr-56", func() {
			p.press("Protect this tag")
		})},
		{name: "Delete a tag", get: web + "?specificTag=pr-55", has: `"tags":[]`, do: tag("pr-55", func() {
			p.press("Delete this tag")
		})},
		{name: "Bring a deleted tag back", get: web + "?specificTag=pr-55", has: `"pr-55"`, do: func() {
			p.press("acme/web")
			p.press("History")
			p.toThat("Restore pr-55 to ")
			p.enter()
		}},
		{name: "Ask why an image is kept", do: tag("pr-54", func() {
			p.press("Why is it kept?")
			p.shows("pr-54")
		})},
		{name: "Ask who pulled an image", do: tag("pr-54", func() {
			p.press("Who pulled it?")
		})},
		{name: "Delete a manifest without a tag", do: func() {
			p.press("acme/web")
			p.press("Untagged")
			p.toThat("Pick ")
			p.toThat("Pick ") // the first one picks all
			p.toggle()
			p.toThat("Delete picked manifests")
			p.enter()
			p.shows("1 manifest")
		}},
		{name: "Delete a repository", get: "/repository?namespace=acme", has: `"web"`, lacks: `"deep/er/name"`, do: func() {
			p.press("acme/deep/er/name")
			p.press("Settings")
			p.fill("Type acme/deep/er/name to confirm", "acme/deep/er/name")
			p.press("Delete repository")
		}},
		{name: "Bring a deleted repository back", get: "/repository?namespace=acme", has: `"deep/er/name"`, do: func() {
			p.menu("Trash")
			p.press("Restore")
		}},
	}
}

// registryJobs are those in the whole registry and in an account.
func registryJobs(p typist) []job {
	return []job{
		{name: "Find an image by how its tag begins", do: func() {
			p.search("v1.")
			p.enter()
			p.press("v1.0")
			p.shows("linux/arm64")
		}},
		{name: "Read who changed what in a namespace", do: func() {
			p.menu("Audit log")
			p.fill("Namespace", "acme")
			p.press("Show")
			p.shows("acme/web")
		}},
		{name: "See what the registry stores", do: func() {
			p.menu("Storage")
			p.shows("In repositories")
		}},
		{name: "Collect garbage now", do: func() {
			p.menu("Garbage collection")
			p.press("Collect now")
			p.shows("The last run")
		}},
		{name: "Create a user", get: "/superuser/users/", has: `"newcomer"`, do: func() {
			p.menu("Users")
			p.unfold("Create a user")
			p.fill("Name", "newcomer")
			p.press("Create")
		}},
		{name: "Protect tags in every repository", get: "/tagprotection", has: `^stable$`, do: func() {
			p.menu("Defaults")
			p.fill("Protect tags that match, in all repositories", "^stable$")
			p.press("Protect")
		}},
		{name: "Make a token", get: "/user/apptoken", has: `"laptop"`, do: func() {
			p.press("admin")
			p.unfold("Make a token")
			p.fill("What it is for", "laptop")
			p.press("Make the token")
		}},
		{name: "End the other log-ins", do: func() {
			p.press("admin")
			p.press("Log out everywhere else")
		}},
		{name: "Change one's password", do: func() {
			p.press("admin")
			p.fill("Password now", accountPassword)
			p.fill("New password, 8 characters at least", accountPassword+"2")
			p.fill("New password once more", accountPassword+"2")
			p.press("Change")
		}},
	}
}
