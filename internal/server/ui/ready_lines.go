package ui

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/api"
)

// readyLine is what somebody copies so that a client logs in as a robot.
type readyLine struct{ Name, Text, Hint string }

// noSecret stands in ready lines for a secret, which is known only while it is new.
const noSecret = "PASTE-THE-SECRET-HERE"

// plainWord are words that a shell takes as they are.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9.:/_-]+$`)

// shellWord returns a word as a shell takes it.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// yamlText returns a text as YAML takes it.
func yamlText(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// login returns a command that logs in with the secret of its standard input, which the given command
// writes.
func login(writes, client, host, robot string) string {
	return writes + " | " + client + " " + shellWord(host) + " --username " + shellWord(robot) + " --password-stdin"
}

// readyLines returns the lines for clients that log in as a robot, with its secret if it was just made.
// Pipelines of issuers that the robot has rules for log in with their own tokens. `secret` is "" if it
// isn't known.
func readyLines(a registryAddress, robot api.RobotItem, secret string, rules api.FederationRules) []readyLine {
	if secret == "" {
		secret = noSecret
	}
	name, image := robot.Name(), a.Host+"/"+robot.Namespace+"/REPOSITORY:TAG"
	echo := "echo " + shellWord(secret)
	lines := []readyLine{
		{"docker", login(echo, "docker login", a.Host, name), ""},
		{"podman, skopeo", login(echo, "podman login"+a.whenPlain(" --tls-verify=false"), a.Host, name), "With skopeo login instead of podman login for skopeo."},
		{"containerd (ctr)", "ctr images pull" + a.whenPlain(" --plain-http") + " --user " + shellWord(name+":"+secret) + " " + shellWord(image), ""},
		{"containerd (nerdctl)", login(echo, "nerdctl"+a.whenPlain(" --insecure-registry")+" login", a.Host, name), ""},
		{"Kubernetes", "kubectl create secret docker-registry purser --docker-server=" + shellWord(a.Host) + " \\\n" +
			"    --docker-username=" + shellWord(name) + " --docker-password=" + shellWord(secret) + "\n" +
			`kubectl patch serviceaccount default -p '{"imagePullSecrets": [{"name": "purser"}]}'`, "Pods of this service account pull with it. It belongs to one namespace of the cluster."},
	}
	if a.Plain {
		lines = append(lines, readyLine{"containerd's hosts.toml", "server = \"http://" + a.Host + "\"\n\n[host.\"http://" + a.Host + "\"]\n  capabilities = [\"pull\", \"resolve\"]",
			"Over http, each node of a cluster with containerd needs this as /etc/containerd/certs.d/" + a.Host + "/hosts.toml."})
	}
	return append(lines,
		readyLine{"helm", login(echo, "helm registry login"+a.whenPlain(" --plain-http"), a.Host, name), "Charts are then at oci://" + a.Host + "/" + robot.Namespace + "/CHART."},
		githubLine(a, name, rules), gitlabLine(a, name, rules))
}

// githubLine returns a step of GitHub Actions.
func githubLine(a registryAddress, robot string, rules api.FederationRules) readyLine {
	const issuer = "https://token.actions.githubusercontent.com"
	i := slices.IndexFunc(rules, func(r api.FederationRule) bool { return r.Issuer == issuer || strings.HasPrefix(r.Issuer, issuer+"/") })
	if i < 0 {
		return readyLine{"GitHub Actions", "- uses: docker/login-action@v3\n  with:\n    registry: " + yamlText(a.Host) + "\n    username: " + yamlText(robot) + "\n    password: ${{ secrets.PURSER_SECRET }}",
			"Store the robot's secret as the repository's secret PURSER_SECRET. With a rule for GitHub's tokens, below, there is no secret to store."}
	}
	writes := "curl -sH \"Authorization: bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN\" \\\n        \"$ACTIONS_ID_TOKEN_REQUEST_URL&audience=" + url.QueryEscape(rules[i].Audience) + "\" | jq -r .value"
	return readyLine{"GitHub Actions", "permissions:\n  contents: read\n  id-token: write\nsteps:\n  - run: |\n      " + login(writes, "docker login", a.Host, robot),
		"The job's own token logs in, by a rule below. No secret is needed."}
}

// gitlabLine returns a job of GitLab CI.
func gitlabLine(a registryAddress, robot string, rules api.FederationRules) readyLine {
	i := slices.IndexFunc(rules, func(r api.FederationRule) bool {
		return r.Issuer == "https://gitlab.com" || strings.HasPrefix(r.Subject, "project_path:")
	})
	service := "    - docker:dind\n"
	if a.Plain {
		service = "    - name: docker:dind\n      command: [" + yamlText("--insecure-registry="+a.Host) + "]\n"
	}
	job := "push:\n  image: docker\n  services:\n" + service
	if i < 0 {
		return readyLine{"GitLab CI", job + "  script:\n    - " + login(`echo "$PURSER_SECRET"`, "docker login", a.Host, robot),
			"Store the robot's secret as the masked CI/CD variable PURSER_SECRET. With a rule for GitLab's tokens, below, there is no secret to store."}
	}
	return readyLine{"GitLab CI", job + "  id_tokens:\n    PURSER_TOKEN:\n      aud: " + yamlText(rules[i].Audience) + "\n  script:\n    - " + login(`echo "$PURSER_TOKEN"`, "docker login", a.Host, robot),
		"The job's own token logs in, by a rule below. No secret is needed."}
}
