// Package kube finds out which images a Kubernetes cluster runs, and to which ones it would roll
// back.
//
// It reads lists with the client of k8s.io/client-go/rest, which knows kubeconfigs, plugins for
// credentials and the tokens of pods, and decodes the few members that it needs. It doesn't use
// the clients of k8s.io/client-go/kubernetes, which would make Purser larger by 20 MB.
package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/purser-registry/purser/cmd/purser/internal/report"
)

// Options say which cluster to read.
type Options struct {
	// Kubeconfig is the path of a kubeconfig. "": the file that kubectl would use, or, in a pod
	// without such a file, the pod's service account.
	Kubeconfig string
	Context    string   // of the kubeconfig; "": the current one
	Namespaces []string // to read; none: all
	Rollbacks  int      // earlier revisions of each workload whose images count as deployed

	bounds // for tests; zero: the usual ones
}

// bounds limit how long an API server is waited for, and what is read of its answers.
type bounds struct {
	answer time.Duration // until an answer has come as a whole
	pages  int           // of a list
	event  int64         // bytes of an event of a watch
}

// usual are the bounds. API servers end requests after a minute themselves, no cluster has as many
// objects of a kind as so many pages have, and etcd takes no object that makes so large an event.
var usual = bounds{answer: time.Minute, pages: 2000, event: 32 << 20}

// orUsual returns the bounds, with the usual ones for those that aren't set.
func (b bounds) orUsual() bounds {
	return bounds{cmp.Or(b.answer, usual.answer), cmp.Or(b.pages, usual.pages), cmp.Or(b.event, usual.event)}
}

// Read returns the images of a cluster's pods, of the newest 1+o.Rollbacks revisions of its
// Deployments, StatefulSets, DaemonSets and ReplicationControllers, of its CronJobs and PodTemplates,
// of Jobs that haven't finished, and of custom resources that have templates of pods. If a list of
// one of Kubernetes' own kinds can't be read, it returns an error. It goes on after the end of ctx as
// long as a kubeconfig's command for credentials runs, since client-go doesn't end that; so does Watch.
func Read(ctx context.Context, o Options) (report.Deployed, error) {
	c, err := connect(o)
	if err != nil {
		return report.Deployed{}, err
	}
	return c.everything(ctx)
}

// connect returns a client of the cluster.
func connect(o Options) (*cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.UserAgent = "purser-report"
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the cluster: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("the cluster's address: %w", err)
	}
	namespaces := o.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	return &cluster{client: client, base: base, namespaces: namespaces, rollbacks: o.Rollbacks, bounds: o.orUsual()}, nil
}

// everything reads all lists.
func (c *cluster) everything(ctx context.Context) (found report.Deployed, err error) {
	d := &deployed{rollbacks: c.rollbacks}
	custom, err := c.customKinds(ctx, d)
	if err != nil {
		return found, report.Incomplete(err)
	}
	own, err := c.ownKinds(ctx, d)
	if err != nil {
		return found, report.Incomplete(err)
	}
	for _, n := range c.namespaces {
		if err := c.read(ctx, d, n, own, custom); err != nil {
			return found, report.Incomplete(err)
		}
	}
	if found.Cluster, err = c.uid(ctx, d); err != nil {
		return report.Deployed{}, report.Incomplete(err)
	}
	found.Unread = d.unread
	found.Images, err = d.images()
	return found, err
}

// uid returns the cluster's UID, which is that of its namespace kube-system: it is made with the
// cluster, and nobody deletes it. The registry refuses a report of another cluster under a
// reporter's name. Without the right to read it there is none.
func (c *cluster) uid(ctx context.Context, d *deployed) (string, error) {
	var namespace struct {
		typed
		Metadata metadata `json:"metadata"`
	}
	err := c.get(ctx, "api/v1/namespaces/kube-system", nil, "Namespace", &namespace)
	if refused, ok := errors.AsType[*statusError](err); ok && (refused.status == http.StatusForbidden || refused.status == http.StatusNotFound) {
		d.miss("the cluster isn't known, so another one may report under this name: %v", err)
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the namespace kube-system: %w", err)
	}
	return namespace.Metadata.UID, nil
}

var namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// CheckNamespace returns an error unless `name` can be the name of a cluster's namespace.
func CheckNamespace(name string) error {
	if !namespaceName.MatchString(name) {
		return errors.New("a namespace of Kubernetes has up to 63 lower-case letters, digits and hyphens")
	}
	return nil
}

// pageSize is how many objects a page of a list has.
const pageSize = 500

// maxPage is the most bytes that are read of a page. An object has at most 1.5 MB, and most have
// a few kilobytes.
const maxPage = 256 << 20

type cluster struct {
	client     *http.Client
	base       *url.URL
	namespaces []string // to read; "": all
	rollbacks  int
	bounds
}

// kind is a kind of objects that have templates of pods.
type kind struct {
	group, resource string
	read            func(ctx context.Context, c *cluster, namespace string) error
}

// own are Kubernetes' own kinds. Deployments, StatefulSets and DaemonSets aren't among them: their
// templates are in ReplicaSets and ControllerRevisions. Pods come last: a pod that a controller
// makes meanwhile has the images of a revision that was read before, or is in the list of pods
// itself.
func (d *deployed) own() []kind {
	return []kind{
		{"api/v1", "replicationcontrollers", reader("api/v1", "replicationcontrollers", "ReplicationControllerList", d.replicationController)},
		{"api/v1", "podtemplates", reader("api/v1", "podtemplates", "PodTemplateList", d.podTemplate)},
		{"apis/apps/v1", "replicasets", reader("apis/apps/v1", "replicasets", "ReplicaSetList", d.replicaSet)},
		{"apis/apps/v1", "controllerrevisions", reader("apis/apps/v1", "controllerrevisions", "ControllerRevisionList", d.controllerRevision)},
		{"apis/batch/v1", "cronjobs", reader("apis/batch/v1", "cronjobs", "CronJobList", d.cronJob)},
		{"apis/batch/v1", "jobs", reader("apis/batch/v1", "jobs", "JobList", d.job)},
		{"api/v1", "pods", reader("api/v1", "pods", "PodList", d.pod)},
	}
}

// reader returns what reads a list, whose kind is `of`, such as PodList.
func reader[T any](group, resource, of string, each func(T)) func(context.Context, *cluster, string) error {
	return func(ctx context.Context, c *cluster, namespace string) error {
		return list(ctx, c, group, namespace, resource, of, pageSize, each)
	}
}

// read reads the lists of a namespace, or of all namespaces if it is "".
func (c *cluster) read(ctx context.Context, d *deployed, namespace string, own, custom []kind) error {
	for _, k := range custom {
		err := k.read(ctx, c, namespace)
		if refused, ok := errors.AsType[*statusError](err); ok && refused.status == http.StatusForbidden {
			d.miss("%s.%s have templates of pods and weren't read: %v", k.resource, k.group, err)
			continue
		}
		if err != nil {
			return err
		}
	}
	for _, k := range own {
		if err := k.read(ctx, c, namespace); err != nil {
			return err
		}
	}
	return nil
}

// errExpired says that a list changed so much while it was read that it must be read anew.
var errExpired = errors.New("the list has expired")

// list calls `each` with each object of a list. If the list expires while its pages are read, it
// is read again from its beginning; so `each` may get an object more than once.
func list[T any](ctx context.Context, c *cluster, group, namespace, resource, of string, size int, each func(T)) error {
	path := group
	if namespace != "" {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	path += "/" + resource
	var err error
	for range 5 {
		if err = pages(ctx, c, path, of, size, each); !errors.Is(err, errExpired) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("listing %s: %w", resource, err)
	}
	return nil
}

func pages[T any](ctx context.Context, c *cluster, path, of string, size int, each func(T)) error {
	next := ""
	for range c.pages {
		var page struct {
			typed
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		q := url.Values{"limit": {strconv.Itoa(size)}}
		if next != "" {
			q.Set("continue", next)
		}
		if err := c.get(ctx, path, q, of, &page); err != nil {
			return err
		}
		for _, item := range page.Items {
			each(item)
		}
		if next = page.Metadata.Continue; next == "" {
			return nil
		}
	}
	return fmt.Errorf("the list has more than %d pages", c.pages)
}

// typed has the member that says of which kind an object is. An answer of another kind, such as that of
// something else than an API server, would count as a list without objects.
type typed struct {
	Kind string `json:"kind"`
}

func (t typed) ofKind() string { return t.Kind }

// get reads an answer of the kind `of`.
func (c *cluster) get(ctx context.Context, path string, q url.Values, of string, out interface{ ofKind() string }) error {
	within, cancel := context.WithTimeoutCause(ctx, c.answer, fmt.Errorf("the API server gave no whole answer within %s", c.answer))
	defer cancel()
	err := c.ask(within, path, q, out)
	switch {
	case err != nil && within.Err() != nil && ctx.Err() == nil:
		return context.Cause(within)
	case err != nil:
		return err
	case out.ofKind() != of:
		return fmt.Errorf("the API server answered /%s with the kind %.100q instead of %s", path, out.ofKind(), of)
	}
	return nil
}

func (c *cluster) ask(ctx context.Context, path string, q url.Values, out any) error {
	u := c.base.JoinPath(path)
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusGone && q.Has("continue"):
		return errExpired
	case resp.StatusCode != http.StatusOK:
		return refused(resp.StatusCode, body)
	case len(body) > maxPage:
		return fmt.Errorf("a page of the list has more than %d MiB", maxPage>>20)
	}
	return json.Unmarshal(body, out)
}

// statusError is an answer of the API server with an error status.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the API server answered %d: %s", e.status, e.message)
}

// refused is the error for an answer with an error status, with the API server's message.
func refused(status int, body []byte) error {
	var s struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &s) != nil || s.Message == "" {
		s.Message = strings.TrimSpace(string(body[:min(len(body), 300)]))
	}
	return &statusError{status, s.Message}
}
