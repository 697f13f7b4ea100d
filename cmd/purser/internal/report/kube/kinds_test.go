package kube

import (
	"fmt"
	"strings"
	"testing"
)

// TestKinds: ReplicationControllers and PodTemplates count, and custom resources with templates of
// pods, where the account may read them. What isn't read is told.
func TestKinds(t *testing.T) {
	t.Parallel()
	definition := func(plural, scope, schema string) string {
		return fmt.Sprintf(`{"kind":"CustomResourceDefinition","metadata":{"name":"%s.argoproj.io"},"spec":{"group":"argoproj.io","scope":%q,
			"names":{"plural":%[1]q,"kind":"Rollout"},"versions":[{"name":"v1","served":false,"schema":{"openAPIV3Schema":%[3]s}},
			{"name":"v1alpha1","served":true,"schema":{"openAPIV3Schema":%[3]s}}]}}`, plural, scope, schema)
	}
	nested := func(inner string) string {
		return `{"properties":{"spec":{"properties":{"template":{"properties":{"spec":` + inner + `}}}}}}`
	}
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	server := func() *apiServer {
		return &apiServer{page: 2, objects: map[string][]string{
			"/api/v1/replicationcontrollers": {
				object("ReplicationController", "rc-1", "", `"spec":{"replicas":1,`+template("r.example/rc:v1")+`}`),
			},
			"/api/v1/podtemplates": {object("PodTemplate", "pt-1", "", template("r.example/pt:v1"))},
			definitions: {
				definition("rollouts", "Namespaced", nested(`{"properties":{"containers":{"type":"array"}}}`)),
				definition("jobsets", "Namespaced", nested(`{"x-kubernetes-preserve-unknown-fields":true}`)),
				definition("secrets", "Namespaced", nested(`{"type":"object"}`)),
				definition("leaderworkersets", "Namespaced", `{"properties":{"spec":{"properties":{"leaderWorkerTemplate":{"properties":{"workerTemplate":{"properties":{"spec":
					{"properties":{"containers":{"type":"array"}}}}}}}}}}}`),
				definition("rayclusters", "Namespaced", `{"properties":{"spec":{"properties":{"workerGroupSpecs":{"type":"array","items":{"properties":{"template":{"properties":{"spec":
					{"properties":{"containers":{"type":"array"}}}}}}}}}}}}`),
				definition("pools", "Namespaced", `{"properties":{"spec":{"properties":{"groups":{"additionalProperties":{"properties":{"pods":{"properties":{"spec":
					{"properties":{"containers":{"type":"array"}}}}}}},"loose":{"additionalProperties":true}}}}}}`),
				definition("additions", "Namespaced", `{"properties":{"spec":{"properties":{"containers":{"type":"array"}}}}}`), // to pods that others make
				definition("machines", "Cluster", nested(`{"properties":{"containers":true}}`)),
			},
			"/apis/argoproj.io/v1alpha1/rollouts":         {object("Rollout", "ro-1", "", `"spec":{`+template("r.example/ro:v1")+`}`), object("Rollout", "ro-2", "", `"spec":{"template":"x"}`)},
			"/apis/argoproj.io/v1alpha1/jobsets":          {object("JobSet", "js-1", "", `"spec":{`+template("r.example/js:v1")+`}`)},
			"/apis/argoproj.io/v1alpha1/secrets":          {object("Secret", "se-1", "", `"spec":{`+template("r.example/se:v1")+`}`)},
			"/apis/argoproj.io/v1alpha1/leaderworkersets": {object("LeaderWorkerSet", "lw-1", "", `"spec":{"leaderWorkerTemplate":{"size":2,"workerTemplate":{"spec":{"containers":[{"name":"c","image":"r.example/lw:v1"}]}}}}`)},
			"/apis/argoproj.io/v1alpha1/rayclusters":      {object("RayCluster", "ra-1", "", `"spec":{"workerGroupSpecs":[{"template":{"spec":{"containers":"none"}}},{`+template("r.example/ra:v1")+`}]}`)},
			"/apis/argoproj.io/v1alpha1/pools":            {object("Pool", "po-1", "", `"spec":{"groups":{"a":{"pods":{"spec":{"initContainers":[{"name":"i","image":"r.example/in:v1"}],"containers":[{"name":"c","image":"r.example/po:v1"}]}}}}}`)},
			"/apis/argoproj.io/v1alpha1/additions":        {object("Addition", "ad-1", "", `"spec":{"containers":[{"name":"c","image":"r.example/ad:v1"}]}`)},
			"/apis/argoproj.io/v1alpha1/machines":         {object("Machine", "ma-1", "", `"spec":{`+template("r.example/ma:v1")+`}`)},
		}}
	}
	read := func(a *apiServer, namespaces ...string) (map[string]string, string) {
		t.Helper()
		o := a.options(t)
		o.Namespaces = namespaces
		found, err := Read(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return names(t, found.Images), strings.Join(found.Unread, "\n")
	}
	got, unread := read(server())
	for _, image := range []string{"rc", "pt", "ro", "js", "ma", "lw", "ra", "po", "in"} {
		if got["r.example/"+image+":v1"] == "" || len(got) != 9 || unread != "" {
			t.Errorf("no %s in %v; unread: %s", image, got, unread)
		}
	}
	for path, want := range map[string]string{
		"/apis/argoproj.io/v1alpha1/rollouts": "rollouts.argoproj.io have templates of pods and weren't read", definitions: "custom resources weren't read",
		"/apis/argoproj.io/v1alpha1/rayclusters": "rayclusters.argoproj.io have templates of pods and weren't read",
	} {
		a := server()
		a.answer = map[string]int{path: 403}
		if got, unread := read(a); !strings.Contains(unread, want) || got["r.example/ro:v1"] != "" && got["r.example/ra:v1"] != "" || got["r.example/rc:v1"] == "" {
			t.Errorf("%s is forbidden: %v; unread: %s", path, got, unread)
		}
		a = server()
		a.answer = map[string]int{path: 500}
		if found, err := Read(t.Context(), a.options(t)); err == nil || len(found.Images) > 0 {
			t.Errorf("%s fails: %v", path, found)
		}
	}
	a := server()
	a.without = "podtemplates"
	a.answer = map[string]int{definitions: 404, "/api/v1/podtemplates": 404}
	if got, unread := read(a); unread != "the API server has no podtemplates" || got["r.example/rc:v1"] == "" {
		t.Errorf("%v; unread: %s", got, unread)
	}
	if _, unread := read(server(), "shop"); !strings.Contains(unread, "machines.argoproj.io aren't in namespaces") {
		t.Errorf("unread in a namespace: %s", unread)
	}
}

// TestCluster: a cluster is known by the UID of its namespace kube-system, if that may be read.
func TestCluster(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{0: "uid-of-the-cluster", 403: "", 500: "fails"} {
		a := &apiServer{page: 1, answer: map[string]int{}}
		if status != 0 {
			a.answer["/api/v1/namespaces/kube-system"] = status
		}
		found, err := Read(t.Context(), a.options(t))
		if err != nil {
			found.Cluster = "fails"
		}
		if told := strings.Contains(strings.Join(found.Unread, ""), "the cluster isn't known"); found.Cluster != want || told != (status == 403) {
			t.Errorf("status %d: %+v, %v", status, found, err)
		}
	}
}
