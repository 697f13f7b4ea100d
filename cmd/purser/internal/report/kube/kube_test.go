package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/report"
)

const (
	one   = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	two   = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	three = "sha256:3333333333333333333333333333333333333333333333333333333333333333"
)

// apiServer answers as an API server does, with pages of at most `page` objects.
type apiServer struct {
	t       *testing.T
	page    int
	objects map[string][]string // JSON texts by path
	answer  map[string]int      // status by path, instead of the objects
	without string              // a resource that isn't offered
	text    map[string]string   // answer by path, with the status 200; "": none ever comes
	gone    int                 // answers 410 to so many requests with continue
	asked   []string
	watch   http.HandlerFunc // answers watches
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.asked = append(a.asked, r.URL.Path)
	if got := r.Header.Get("Authorization"); got != "Bearer token-of-the-config" {
		a.t.Errorf("Authorization %q", got)
	}
	fail := func(status int, message string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"code":%d}`, message, status)
	}
	if status := a.answer[r.URL.Path]; status != 0 {
		fail(status, `forbidden: User "purser" cannot list this`)
		return
	}
	if text, ok := a.text[r.URL.Path]; ok {
		fmt.Fprint(w, text)
		if text == "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
		return
	}
	if r.URL.Query().Get("watch") == "true" {
		a.watch(w, r)
		return
	}
	start, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	if start > 0 && a.gone > 0 {
		a.gone--
		fail(http.StatusGone, "The provided continue parameter is too old")
		return
	}
	if resources, ok := a.kinds()[strings.TrimPrefix(r.URL.Path, "/prefix/")]; ok {
		fmt.Fprintf(w, `{"kind":"APIResourceList","resources":[{"name":"other"},{"name":"%s"}]}`, strings.Join(resources, `"},{"name":"`))
		return
	}
	if r.URL.Path == "/prefix/api/v1/namespaces/kube-system" {
		fmt.Fprint(w, `{"kind":"Namespace","metadata":{"name":"kube-system","uid":"uid-of-the-cluster"}}`)
		return
	}
	all := a.objects[r.URL.Path]
	end := min(start+a.page, len(all))
	next := ""
	if end < len(all) {
		next = strconv.Itoa(end)
	}
	fmt.Fprintf(w, `{"kind":%q,"apiVersion":"v1","metadata":{"resourceVersion":"7","continue":%q},"items":[%s]}`, listKind(r.URL.Path), next, strings.Join(all[start:end], ","))
}

// listKind returns the kind of the list at a path. Custom resources of the tests are Rollouts.
func listKind(path string) string {
	switch path[strings.LastIndex(path, "/")+1:] {
	case "pods":
		return "PodList"
	case "podtemplates":
		return "PodTemplateList"
	case "replicationcontrollers":
		return "ReplicationControllerList"
	case "replicasets":
		return "ReplicaSetList"
	case "controllerrevisions":
		return "ControllerRevisionList"
	case "jobs":
		return "JobList"
	case "cronjobs":
		return "CronJobList"
	case "customresourcedefinitions":
		return "CustomResourceDefinitionList"
	}
	return "RolloutList"
}

// kinds returns the resources that the server offers, by group and version.
func (a *apiServer) kinds() map[string][]string {
	kinds := map[string][]string{}
	for _, k := range new(deployed).own() {
		if k.resource != a.without {
			kinds[k.group] = append(kinds[k.group], k.resource)
		}
	}
	return kinds
}

// Images returns the images that Read finds.
func Images(ctx context.Context, o Options) ([]report.Image, error) {
	found, err := Read(ctx, o)
	return found.Images, err
}

// options starts the server and returns Options with a kubeconfig that names it.
func (a *apiServer) options(t *testing.T) Options {
	t.Helper()
	a.t = t
	s := httptest.NewTLSServer(a)
	t.Cleanup(s.Close)
	path := filepath.Join(t.TempDir(), "config")
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
		"clusters":[{"name":"k","cluster":{"server":%q,"certificate-authority-data":%q}}],"users":[{"name":"u","user":{"token":"token-of-the-config"}}]}`, s.URL+"/prefix",
		base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, answer, text := map[string][]string{}, map[string]int{}, map[string]string{}
	for p, list := range a.objects {
		objects["/prefix"+p] = list
	}
	for p, status := range a.answer {
		answer["/prefix"+p] = status
	}
	for p, t := range a.text {
		text["/prefix"+p] = t
	}
	a.objects, a.answer, a.text = objects, answer, text
	return Options{Kubeconfig: path}
}

func object(kind, name, owner string, members string) string {
	owners := "[]"
	if owner != "" {
		owners = fmt.Sprintf(`[{"apiVersion":"apps/v1","kind":"Deployment","name":%q,"uid":%q,"controller":true}]`, strings.TrimPrefix(owner, "uid-"), owner)
	}
	return fmt.Sprintf(`{"kind":%q,"metadata":{"namespace":"shop","name":%q,"uid":"uid-%[2]s","creationTimestamp":"2026-03-01T10:00:00Z","ownerReferences":%s,
		"annotations":{"deployment.kubernetes.io/revision":%q}},%s}`, kind, name, owners, name[strings.LastIndex(name, "-")+1:], members)
}

func template(image string) string {
	return fmt.Sprintf(`"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":%q}]}}`, image)
}

func set(name, owner string, replicas int, image string) string {
	return object("ReplicaSet", name, owner, fmt.Sprintf(`"spec":{"replicas":%d,%s},"status":{"replicas":%[1]d}`, replicas, template(image)))
}

func running(name, phase, image, id string) string {
	return object("Pod", name, "", fmt.Sprintf(`"spec":{"containers":[{"name":"main","image":%q}],"nodeName":"n1"},
		"status":{"phase":%q,"containerStatuses":[{"name":"main","image":%[1]q,"imageID":%[3]q,"ready":true}]}`, image, phase, id))
}

// names returns each image with its users, sorted.
func names(t *testing.T, images []report.Image) map[string]string {
	t.Helper()
	users := map[string][]string{}
	for _, i := range images {
		users[i.String()] = append(users[i.String()], i.UsedBy)
	}
	out := map[string]string{}
	for name, list := range users {
		slices.Sort(list)
		out[name] = strings.Join(slices.Compact(list), ", ")
	}
	return out
}

func wantImages(t *testing.T, got []report.Image, want map[string]string) {
	t.Helper()
	if found := names(t, got); !maps.Equal(found, want) {
		a, _ := json.MarshalIndent(found, "", " ")
		b, _ := json.MarshalIndent(want, "", " ")
		t.Errorf("found %s\nwant %s", a, b)
	}
}

// TestImages: a cluster has pods in all states, three revisions of a Deployment and of a
// StatefulSet, Jobs and a CronJob. Pages have two objects.
func TestImages(t *testing.T) {
	t.Parallel()
	revisionOf := func(name string, n int, image string) string {
		return object("ControllerRevision", name, "uid-db", fmt.Sprintf(`"revision":%d,"data":{"spec":{%s}}`, n, template(image)))
	}
	a := &apiServer{page: 2, objects: map[string][]string{
		"/api/v1/pods": {
			running("web-1", "Running", "r.example/shop/web:v3", "r.example/shop/web@"+three),
			running("old-1", "Succeeded", "r.example/shop/batch:v1", "r.example/shop/batch@"+one),
			running("starting-1", "Pending", "r.example/shop/new:v1", ""),
			running("pullable-1", "Running", "r.example/shop/p:v1", "docker-pullable://r.example/shop/p@"+two),
			running("index-1", "Running", "r.example/shop/multi@"+one, "r.example/shop/multi@"+two),
			running("config-1", "Running", "r.example/shop/crio:v1", "sha256:4444444444444444444444444444444444444444444444444444444444444444"),
			object("Pod", "side-1", "", `"spec":{"initContainers":[{"name":"i","image":"r.example/shop/init:v1"}],"containers":[{"name":"c","image":"alpine"}],
				"volumes":[{"name":"v","image":{"reference":"r.example/shop/model:v1"}},{"name":"w","emptyDir":{}}]},"status":{"phase":"Pending"}`),
		},
		"/apis/apps/v1/replicasets": {
			set("web-1", "uid-web", 0, "r.example/shop/web:v1"), set("web-2", "uid-web", 0, "r.example/shop/web:v2"),
			set("web-10", "uid-web", 3, "r.example/shop/web:v3"), set("alone-1", "", 0, "r.example/shop/alone:v1"),
			set("blue-1", "uid-blue", 1, "r.example/shop/blue:canary"), set("blue-2", "uid-blue", 0, "r.example/shop/blue:v2"), set("blue-3", "uid-blue", 1, "r.example/shop/blue:v3"),
		},
		"/apis/apps/v1/controllerrevisions": {revisionOf("db-c", 3, "r.example/shop/db:v3"), revisionOf("db-a", 1, "r.example/shop/db:v1"), revisionOf("db-b", 2, "r.example/shop/db:v2")},
		"/apis/batch/v1/jobs": {
			object("Job", "done-1", "", `"spec":{`+template("r.example/shop/done:v1")+`},"status":{"conditions":[{"type":"Complete","status":"True"}]}`),
			object("Job", "todo-1", "", `"spec":{`+template("r.example/shop/todo:v1")+`,"suspend":true},"status":{"conditions":[{"type":"Suspended","status":"True"}]}`),
		},
		"/apis/batch/v1/cronjobs": {object("CronJob", "night", "", `"spec":{"schedule":"0 3 * * *","jobTemplate":{"spec":{`+template("r.example/shop/night:v1")+`}}}`)},
	}}
	o := a.options(t)
	o.Rollbacks = 1
	got, err := Images(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	const id = "r.example/shop/crio with the id sha256:4444444444444444444444444444444444444444444444444444444444444444"
	wantImages(t, got, map[string]string{
		"r.example/shop/web@" + three: "pod shop/web-1", "r.example/shop/web:v3": "deployment shop/web, pod shop/web-1", "r.example/shop/web:v2": "deployment shop/web",
		"r.example/shop/new:v1": "pod shop/starting-1", "r.example/shop/p:v1": "pod shop/pullable-1", "r.example/shop/p@" + two: "pod shop/pullable-1",
		"r.example/shop/multi@" + one: "pod shop/index-1", "r.example/shop/multi@" + two: "pod shop/index-1",
		"r.example/shop/crio:v1": "pod shop/config-1", id: "pod shop/config-1",
		"r.example/shop/init:v1": "pod shop/side-1", "docker.io/library/alpine:latest": "pod shop/side-1",
		"r.example/shop/model:v1": "pod shop/side-1", "r.example/shop/alone:v1": "replicaset shop/alone-1",
		"r.example/shop/blue:canary": "deployment shop/blue", "r.example/shop/blue:v2": "deployment shop/blue", "r.example/shop/blue:v3": "deployment shop/blue",
		"r.example/shop/db:v3": "controllerrevision shop/db-c", "r.example/shop/db:v2": "controllerrevision shop/db-b",
		"r.example/shop/todo:v1": "job shop/todo-1", "r.example/shop/night:v1": "cronjob shop/night",
	})
	for _, i := range got {
		if at := i.At; (strings.HasPrefix(i.UsedBy, "deployment") || strings.HasPrefix(i.UsedBy, "replicaset")) && at.Format("2006-01-02T15:04:05Z") != "2026-03-01T10:00:00Z" {
			t.Errorf("%s was resolved at %v, want its creation", i.UsedBy, at)
		} else if strings.HasPrefix(i.UsedBy, "cronjob") && !at.IsZero() {
			t.Errorf("a CronJob's tag was resolved at %v", at)
		} else if i.Tag != "" && i.Since != strings.HasPrefix(i.UsedBy, "pod") {
			t.Errorf("a tag of %s: perhaps resolved again: %v", i.UsedBy, i.Since)
		}
	}
}

// TestIncomplete: one of the lists can't be read. No image may be returned, since a report that
// lacks the list's images would end their holds.
func TestIncomplete(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"/api/v1/pods", "/api/v1/replicationcontrollers", "/api/v1/podtemplates", "/apis/apps/v1/replicasets", "/apis/apps/v1/controllerrevisions", "/apis/batch/v1/jobs", "/apis/batch/v1/cronjobs",
	} {
		t.Run(path[strings.LastIndex(path, "/")+1:], func(t *testing.T) {
			t.Parallel()
			a := &apiServer{page: 10, objects: map[string][]string{"/api/v1/pods": {running("web-1", "Running", "r.example/a:v1", "r.example/a@"+one)}}, answer: map[string]int{path: 403}}
			got, err := Images(t.Context(), a.options(t))
			if err == nil || len(got) > 0 || !strings.Contains(err.Error(), "cannot list this") || !strings.Contains(err.Error(), "nothing is reported") ||
				!strings.Contains(err.Error(), path[strings.LastIndex(path, "/")+1:]) {
				t.Errorf("%d images, %v", len(got), err)
			}
		})
	}
}

// TestNoAnswer: an API server, or what is in its place, answers with success and with something else
// than what it is asked for, or has no pods, or ends no answer. That isn't a cluster without pods.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	const definition = `{"spec":{"group":"argoproj.io","scope":"Namespaced","names":{"plural":"rollouts","kind":"Rollout","listKind":"RolloutList"},
		"versions":[{"name":"v1","served":true,"schema":{"openAPIV3Schema":{"properties":{"spec":{"properties":{"template":{"properties":{"spec":{"x-kubernetes-preserve-unknown-fields":true}}}}}}}}}]}}`
	const pods, discovery, cluster, definitions = "/api/v1/pods", "/api/v1", "/api/v1/namespaces/kube-system", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	fails := func(a *apiServer, b bounds, want string) {
		t.Helper()
		a.page = 1
		a.objects = map[string][]string{pods: {running("a-1", "Running", "r.example/a:v1", "r.example/a@"+one), running("b-1", "Running", "r.example/b:v1", "r.example/b@"+two)}, definitions: {definition}}
		o := a.options(t)
		o.bounds = b
		got, err := Read(t.Context(), o)
		if err == nil || len(got.Images) > 0 || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "nothing is reported") {
			t.Errorf("%v %v: %d images, %v", a.text, a.answer, len(got.Images), err)
		}
	}
	for path, kind := range map[string]string{
		pods: "PodList", "/api/v1/replicationcontrollers": "ReplicationControllerList", "/api/v1/podtemplates": "PodTemplateList", "/apis/apps/v1/replicasets": "ReplicaSetList",
		"/apis/apps/v1/controllerrevisions": "ControllerRevisionList", "/apis/batch/v1/jobs": "JobList", "/apis/batch/v1/cronjobs": "CronJobList",
		discovery: "APIResourceList", "/apis/apps/v1": "APIResourceList", cluster: "Namespace", definitions: "CustomResourceDefinitionList", "/apis/argoproj.io/v1/rollouts": "RolloutList",
	} {
		for _, text := range []string{`{}`, `{"kind":"Status","status":"Success"}`, `{"kind":"List","items":[]}`} {
			fails(&apiServer{text: map[string]string{path: text}}, bounds{}, "instead of "+kind)
		}
	}
	fails(&apiServer{answer: map[string]int{discovery: 404}}, bounds{}, "no pods")
	fails(&apiServer{without: "pods"}, bounds{}, "no pods")
	for _, path := range []string{pods, discovery, definitions} {
		fails(&apiServer{text: map[string]string{path: ""}}, bounds{answer: 200 * time.Millisecond}, "no whole answer within 200ms")
	}
	fails(&apiServer{}, bounds{pages: 1}, "more than 1 pages")
}

// TestExpiredList: a list expires while its pages are read. It must be read again from its
// beginning; if it always expires, no image may be returned.
func TestExpiredList(t *testing.T) {
	t.Parallel()
	pods := []string{running("a-1", "Running", "r.example/a:v1", "r.example/a@"+one), running("b-1", "Running", "r.example/b:v1", "r.example/b@"+two)}
	want := map[string]string{"r.example/a@" + one: "pod shop/a-1", "r.example/b@" + two: "pod shop/b-1", "r.example/a:v1": "pod shop/a-1", "r.example/b:v1": "pod shop/b-1"}
	a := &apiServer{page: 1, gone: 3, objects: map[string][]string{"/api/v1/pods": pods}}
	got, err := Images(t.Context(), a.options(t))
	if err != nil {
		t.Fatal(err)
	}
	wantImages(t, got, want)
	a = &apiServer{page: 1, gone: 1000, objects: map[string][]string{"/api/v1/pods": pods}}
	if got, err := Images(t.Context(), a.options(t)); err == nil || len(got) > 0 {
		t.Errorf("%d images, %v", len(got), err)
	}
}

// TestNamespaces: only the given namespaces are asked for, so that a role in each is enough.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	a := &apiServer{page: 10, objects: map[string][]string{
		"/api/v1/namespaces/shop/pods": {running("a-1", "Running", "r.example/a:v1", "r.example/a@"+one)},
		"/api/v1/namespaces/pay/pods":  {running("b-1", "Running", "r.example/b:v1", "r.example/b@"+two)},
	}}
	o := a.options(t)
	o.Namespaces = []string{"shop", "pay"}
	got, err := Images(t.Context(), o)
	if err != nil || len(got) != 4 {
		t.Errorf("%d images, %v", len(got), err)
	}
	for _, path := range a.asked {
		if discovery := a.kinds()[strings.TrimPrefix(path, "/prefix/")] != nil || strings.HasSuffix(path, "/customresourcedefinitions") || strings.HasSuffix(path, "/namespaces/kube-system"); discovery {
			continue
		}
		if !strings.Contains(path, "/namespaces/shop/") && !strings.Contains(path, "/namespaces/pay/") {
			t.Errorf("it asked for %s", path)
		}
	}
}

// TestNoConfig: the kubeconfig doesn't exist, or lacks the context.
func TestNoConfig(t *testing.T) {
	t.Parallel()
	if _, err := Images(t.Context(), Options{Kubeconfig: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "kubeconfig") {
		t.Error(err)
	}
	o := (&apiServer{page: 1}).options(t)
	o.Context = "other"
	if _, err := Images(t.Context(), o); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Error(err)
	}
}

// TestWorkloads: what runs is told by what people have made, and not by the pods that come and go.
func TestWorkloads(t *testing.T) {
	t.Parallel()
	owned := func(labels, kind, name string, controller bool) metadata {
		var m metadata
		text := fmt.Sprintf(`{"namespace":"shop","name":"x-1","labels":%s,"ownerReferences":[{"kind":%q,"name":%q,"controller":%t}]}`, labels, kind, name, controller)
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for want, m := range map[string]metadata{
		"pod shop/x-1":              owned(`{}`, "ReplicaSet", "web-7d9", false),
		"deployment shop/web":       owned(`{"pod-template-hash":"7d9"}`, "ReplicaSet", "web-7d9", true),
		"replicaset shop/web-7d9":   owned(`{"pod-template-hash":"other"}`, "ReplicaSet", "web-7d9", true),
		"replicaset shop/alone-7d9": owned(`null`, "ReplicaSet", "alone-7d9", true),
		"statefulset shop/db":       owned(`{"pod-template-hash":"7d9"}`, "StatefulSet", "db", true),
		"job shop/night-1":          owned(`{}`, "Job", "night-1", true),
	} {
		if got := m.workload("pod"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
