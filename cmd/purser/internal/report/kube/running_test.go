package kube

import (
	"fmt"
	"strings"
	"testing"
)

// TestRunning has the forms in which containerd, CRI-O and Docker (dockershim, and cri-dockerd
// after it) name the image of a running container in the member imageID of its status. All of them
// name the first of the names with a digest that the image has on the node, whoever gave it that
// name, or else the image's id. Whatever the form, the host of the specification counts.
func TestRunning(t *testing.T) {
	t.Parallel()
	const web, hex = "r.example/shop/web", "1111111111111111111111111111111111111111111111111111111111111111"
	for name, c := range map[string]struct {
		spec, id string
		want     []string
	}{
		"containerd": {web + ":v1", web + "@" + one, []string{web + ":v1", web + "@" + one}},
		"containerd, through a mirror by another name":        {web + ":v1", "mirror.example/cache/web@" + one, []string{web + ":v1", web + "@" + one, "mirror.example/cache/web@" + one}},
		"containerd, another repository's name":               {web + ":v1", "r.example/shop/base@" + one, []string{web + ":v1", web + "@" + one, "r.example/shop/base@" + one}},
		"containerd, an imported image":                       {web + ":v1", one, []string{web + ":v1", web + " with the id " + one}},
		"containerd, Docker Hub":                              {"alpine", "docker.io/library/alpine@" + one, []string{"docker.io/library/alpine:latest", "docker.io/library/alpine@" + one}},
		"containerd, another digest than the specification's": {web + "@" + two, web + "@" + one, []string{web + "@" + two, web + "@" + one}},
		"tag and digest":                                      {web + ":v1@" + two, web + "@" + two, []string{web + "@" + two}},
		"a copy of Docker Hub in our registry":                {"library/alpine:3", "r.example/hub/alpine@" + one, []string{"docker.io/library/alpine:3", "docker.io/library/alpine@" + one, "r.example/hub/alpine@" + one}},
		"CRI-O":                                               {web + ":v1", web + "@" + one, []string{web + ":v1", web + "@" + one}},
		"CRI-O, an image without digests":                     {web + ":v1", hex, []string{web + ":v1", web + " with the id " + one}},
		"CRI-O, localhost":                                    {web + ":v1", "localhost/web@" + one, []string{web + ":v1", web + "@" + one, "localhost/web@" + one}},
		"Docker":                                              {web + ":v1", "docker-pullable://" + web + "@" + one, []string{web + ":v1", web + "@" + one}},
		"Docker, a re-tagged image":                           {web + ":v1", "docker-pullable://other.example/web@" + one, []string{web + ":v1", web + "@" + one, "other.example/web@" + one}},
		"Docker, Docker Hub":                                  {"alpine:3", "docker-pullable://alpine@" + one, []string{"docker.io/library/alpine:3", "docker.io/library/alpine@" + one}},
		"Docker, an image without digests":                    {web + ":v1", "docker://" + one, []string{web + ":v1", web + " with the id " + one}},
		"not started":                                         {web + ":v1", "", []string{web + ":v1"}},
		"a name without digest":                               {web + ":v1", web + ":v1", []string{web + ":v1"}},
		"half a digest":                                       {web + ":v1", web + "@sha256:11", []string{web + ":v1"}},
		"a specification by the image's id":                   {one, web + "@" + one, []string{web + "@" + one}},
	} {
		for kind, members := range map[string]string{
			"containers":          `"spec":{"containers":[{"name":"c","image":%q}]},"status":{"phase":"Running","containerStatuses":[{"name":"c","imageID":%q}]}`,
			"initContainers":      `"spec":{"initContainers":[{"name":"c","image":%q}]},"status":{"phase":"Pending","initContainerStatuses":[{"name":"c","imageID":%q}]}`,
			"ephemeralContainers": `"spec":{"ephemeralContainers":[{"name":"c","image":%q}]},"status":{"phase":"Unknown","ephemeralContainerStatuses":[{"name":"c","imageID":%q}]}`,
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				a := &apiServer{page: 10, objects: map[string][]string{"/api/v1/pods": {object("Pod", "p-1", "", fmt.Sprintf(members, c.spec, c.id))}}}
				got, err := Images(t.Context(), a.options(t))
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]string{}
				for _, name := range c.want {
					want[name] = "pod shop/p-1"
				}
				wantImages(t, got, want)
				for _, i := range got {
					if strings.HasSuffix(i.String(), ":v1") && (i.At.Format("2006-01-02T15:04:05Z") != "2026-03-01T10:00:00Z") {
						t.Errorf("%s counts since %v, %v", i, i.At, i.Since)
					}
				}
			})
		}
	}
}
