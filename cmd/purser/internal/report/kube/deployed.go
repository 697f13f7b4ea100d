package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/report"
)

type metadata struct {
	Namespace         string            `json:"namespace"`
	Name              string            `json:"name"`
	UID               string            `json:"uid"`
	ResourceVersion   string            `json:"resourceVersion"`
	Annotations       map[string]string `json:"annotations"`
	Labels            map[string]string `json:"labels"`
	CreationTimestamp time.Time         `json:"creationTimestamp"`
	OwnerReferences   []struct {
		UID        string `json:"uid"`
		Kind       string `json:"kind"`
		Name       string `json:"name"`
		Controller bool   `json:"controller"`
	} `json:"ownerReferences"`
}

// podHash is the label by which a Deployment tells its ReplicaSets apart: the end of their names.
const podHash = "pod-template-hash"

// workload is what people have made so that an object of this kind exists, such as
// "deployment shop/web" for a pod of it; the object itself if nothing controls it.
func (m metadata) workload(kind string) string {
	for _, o := range m.OwnerReferences {
		if !o.Controller || o.Kind == "" || o.Name == "" {
			continue
		}
		name, isHash := strings.CutSuffix(o.Name, "-"+m.Labels[podHash])
		if o.Kind == "ReplicaSet" && isHash && m.Labels[podHash] != "" {
			return "deployment " + m.Namespace + "/" + name
		}
		return strings.ToLower(o.Kind) + " " + m.Namespace + "/" + o.Name
	}
	return m.user(kind)
}

// owner returns the UID of the object's controller, and the object's own if it has none.
func (m metadata) owner() string {
	for _, o := range m.OwnerReferences {
		if o.Controller {
			return o.UID
		}
	}
	return m.UID
}

func (m metadata) user(kind string) string { return kind + " " + m.Namespace + "/" + m.Name }

// podSpec has the members of a pod's specification that name images.
type podSpec struct {
	Containers          []specContainer `json:"containers"`
	InitContainers      []specContainer `json:"initContainers"`
	EphemeralContainers []specContainer `json:"ephemeralContainers"`
	Volumes             []struct {
		Image struct {
			Reference string `json:"reference"`
		} `json:"image"`
	} `json:"volumes"`
}

type specContainer struct {
	Name  string `json:"name"`
	Image string `json:"image"`
}

func (s podSpec) containers() []specContainer {
	return slices.Concat(s.Containers, s.InitContainers, s.EphemeralContainers)
}

// volumes returns the names of the images that are mounted.
func (s podSpec) volumes() (names []string) {
	for _, v := range s.Volumes {
		if v.Image.Reference != "" {
			names = append(names, v.Image.Reference)
		}
	}
	return names
}

type podTemplate struct {
	Spec podSpec `json:"spec"`
}

type pod struct {
	Metadata metadata `json:"metadata"`
	Spec     podSpec  `json:"spec"`
	Status   struct {
		Phase                      string            `json:"phase"`
		ContainerStatuses          []containerStatus `json:"containerStatuses"`
		InitContainerStatuses      []containerStatus `json:"initContainerStatuses"`
		EphemeralContainerStatuses []containerStatus `json:"ephemeralContainerStatuses"`
	} `json:"status"`
}

type containerStatus struct {
	Name    string `json:"name"`
	ImageID string `json:"imageID"`
}

type replicaSet struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		Replicas *int        `json:"replicas"`
		Template podTemplate `json:"template"`
	} `json:"spec"`
}

// replicationController is what ReplicaSets came from; DeploymentConfigs of OpenShift still make them.
type replicationController struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		Replicas *int        `json:"replicas"`
		Template podTemplate `json:"template"`
	} `json:"spec"`
}

type storedTemplate struct {
	Metadata metadata    `json:"metadata"`
	Template podTemplate `json:"template"`
}

// controllerRevision is a revision of a StatefulSet or DaemonSet. Its data is a patch of the
// object, with the template of its pods.
type controllerRevision struct {
	Metadata metadata        `json:"metadata"`
	Revision int64           `json:"revision"`
	Data     json.RawMessage `json:"data"`
}

type job struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		Template podTemplate `json:"template"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

type cronJob struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		JobTemplate struct {
			Spec struct {
				Template podTemplate `json:"template"`
			} `json:"spec"`
		} `json:"jobTemplate"`
	} `json:"spec"`
}

// deployed collects images.
type deployed struct {
	rollbacks int
	found     []report.Image
	revisions map[string]map[string]revision // by owner, by name
	unread    []string                       // what isn't read, for people
	err       error                          // of the first object that couldn't be understood
}

// revision is a revision of a workload.
type revision struct {
	number int64
	active bool // it has replicas, whatever its number
	user   string
	made   time.Time
	spec   podSpec
}

// replicaSetRevision is the annotation with the number of a ReplicaSet's revision.
const replicaSetRevision = "deployment.kubernetes.io/revision"

// controllerVersion is the same of a ReplicationController that a DeploymentConfig has made.
const controllerVersion = "openshift.io/deployment-config.latest-version"

func (d *deployed) replicationController(r replicationController) {
	n, _ := strconv.ParseInt(r.Metadata.Annotations[controllerVersion], 10, 64) // 0 without a DeploymentConfig
	d.revision(r.Metadata, revision{n, r.Spec.Replicas == nil || *r.Spec.Replicas > 0, r.Metadata.user("replicationcontroller"), r.Metadata.CreationTimestamp, r.Spec.Template.Spec})
}

func (d *deployed) podTemplate(t storedTemplate) {
	d.template(t.Template.Spec, time.Time{}, t.Metadata.user("podtemplate"))
}

func (d *deployed) replicaSet(r replicaSet) {
	n, _ := strconv.ParseInt(r.Metadata.Annotations[replicaSetRevision], 10, 64) // 0 without a Deployment
	d.revision(r.Metadata, revision{n, r.Spec.Replicas == nil || *r.Spec.Replicas > 0, r.Metadata.workload("replicaset"), r.Metadata.CreationTimestamp, r.Spec.Template.Spec})
}

func (d *deployed) controllerRevision(r controllerRevision) {
	var data struct {
		Spec struct {
			Template podTemplate `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data, &data); err != nil {
		d.fail(fmt.Errorf("the %s: %w", r.Metadata.user("controllerrevision"), err))
		return
	}
	d.revision(r.Metadata, revision{r.Revision, false, r.Metadata.user("controllerrevision"), r.Metadata.CreationTimestamp, data.Spec.Template.Spec})
}

func (d *deployed) revision(m metadata, r revision) {
	if d.revisions == nil {
		d.revisions = map[string]map[string]revision{}
	}
	owner := m.owner()
	if d.revisions[owner] == nil {
		d.revisions[owner] = map[string]revision{}
	}
	d.revisions[owner][m.Name] = r
}

func (d *deployed) cronJob(c cronJob) {
	// The next pod of a CronJob resolves a tag when it starts, so the tag's digest is today's.
	d.template(c.Spec.JobTemplate.Spec.Template.Spec, time.Time{}, c.Metadata.user("cronjob"))
}

func (d *deployed) job(j job) {
	for _, c := range j.Status.Conditions {
		if (c.Type == "Complete" || c.Type == "Failed") && c.Status == "True" {
			return
		}
	}
	d.template(j.Spec.Template.Spec, j.Metadata.CreationTimestamp, j.Metadata.user("job"))
}

// pod adds the images of a pod's containers, also of those that haven't started yet.
func (d *deployed) pod(p pod) {
	if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
		return
	}
	running := map[string]string{} // by the container's name
	for _, s := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses) {
		running[s.Name] = s.ImageID
	}
	user, since := p.Metadata.workload("pod"), p.Metadata.CreationTimestamp
	for _, c := range p.Spec.containers() {
		d.container(c.Image, running[c.Name], since, user)
	}
	for _, name := range p.Spec.volumes() {
		d.container(name, "", since, user)
	}
}

// container adds what is known about the image of a container of a pod that was made at `since`.
// `spec` is the image's name in the pod's specification, `running` what its status says. A tag counts
// with all that it named since the pod was made, since a container that is started again may have
// been pulled again.
func (d *deployed) container(spec, running string, since time.Time, user string) {
	r := report.Running{Name: spec, At: since, Again: true, UsedBy: user}
	if known, ok := report.ParseRunning(running); ok {
		r.Known = []report.Image{known}
	}
	d.found = append(d.found, r.Images()...)
}

// template adds the images of a template of pods. `at` is when its tags were resolved.
func (d *deployed) template(s podSpec, at time.Time, user string) {
	names := s.volumes()
	for _, c := range s.containers() {
		names = append(names, c.Image)
	}
	for _, name := range names {
		i, err := report.Parse(name)
		if err != nil {
			continue // no node can pull this name
		}
		i.At, i.UsedBy = at, user
		d.found = append(d.found, i)
	}
}

func (d *deployed) fail(err error) { d.err = cmp.Or(d.err, err) }

// images returns what was collected. Of each workload's revisions, the newest 1+rollbacks count,
// and those that have replicas.
func (d *deployed) images() ([]report.Image, error) {
	if d.err != nil {
		return nil, report.Incomplete(d.err)
	}
	for _, byName := range d.revisions {
		list := make([]revision, 0, len(byName))
		for _, r := range byName {
			list = append(list, r)
		}
		slices.SortFunc(list, func(a, b revision) int {
			return cmp.Or(cmp.Compare(b.number, a.number), b.made.Compare(a.made), cmp.Compare(a.user, b.user))
		})
		for i, r := range list {
			if r.active || i <= d.rollbacks {
				d.template(r.spec, r.made, r.user)
			}
		}
	}
	return d.found, nil
}
