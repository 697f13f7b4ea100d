//go:build all

package e2e

import (
	"regexp"
	"strings"
	"testing"
)

// TestOpsDocsPullRequests runs the commands of docs/pull-requests.md, and those of its pipelines for
// GitHub and GitLab that delete tags.
func TestOpsDocsPullRequests(t *testing.T) {
	d := newDaily(t, "docs/pull-requests.md", "PURSER_AUTH_ENABLED=true", "PURSER_AUTH_INITIAL_PASSWORD=correct-horse-battery")
	d.command("purser login --username admin --password-stdin <<< correct-horse-battery")
	d.command("purser namespace create acme")
	token := regexp.MustCompile(`pur[a-z]*_\w+`).FindString(d.command("purser token create docs"))
	d.env = append(d.env, "PURSER_TOKEN="+token)
	d.im.crane.RunInput(token, "auth", "login", d.r.host, "--username", "admin", "--password-stdin")
	d.push("acme/app:v1", "acme/app:v2", "acme/app:v3", "acme/app:v4")
	for _, b := range d.blocks {
		b.used = true
		if b.lang != "console" {
			continue
		}
		for _, command := range strings.Split("\n"+b.text, "\n$ ")[1:] {
			if strings.Contains(command, "federate") {
				continue
			}
			if strings.Contains(command, "pr-7-*") {
				d.push("acme/app:pr-7-1", "acme/app:pr-7-2", "acme/app:pr-70-1")
			}
			d.RunBlock(&docBlock{line: b.line, lang: "console", text: "$ " + command})
			if strings.Contains(command, "tag delete") {
				d.command("! purser tag list acme/app | grep pr-7-")
				d.command("purser tag list acme/app | grep pr-70-1")
			}
		}
	}
	for _, b := range d.blocks {
		if b.lang != "yaml" {
			continue
		}
		hook := regexp.MustCompile(`purser tag expire .*`).FindString(b.text)
		d.push("acme/app:pr-7-1", "acme/app:pr-7-2")
		d.expect(d.command("NUMBER=7; CI_MERGE_REQUEST_IID=7; "+hook), "2 tags of acme/app will be deleted")
		d.command("! (unset NUMBER CI_MERGE_REQUEST_IID; " + hook + ")")
	}
}
