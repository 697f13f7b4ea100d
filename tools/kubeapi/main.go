// Command kubeapi is the API of a Kubernetes cluster for tests: etcd and kube-apiserver in one
// process, without nodes and without controllers, so whatever a test writes stays as it is.
// It authorizes by RBAC, and issues tokens of service accounts.
//
//	kubeapi DIR
//
// keeps its data in DIR, which must be empty, and listens on free ports of 127.0.0.1. When the API
// is ready, it prints the path of a kubeconfig whose user may do everything. It ends when standard
// input does. It is a module of its own, so that the registry doesn't depend on what it needs.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: kubeapi DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "kubeapi:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	etcd, err := startEtcd(filepath.Join(dir, "etcd"))
	if err != nil {
		return err
	}
	defer etcd.Close()
	port, err := freePort()
	if err != nil {
		return err
	}
	token := rand.Text()
	failed := make(chan error, 1)
	if err := startAPI(dir, etcd.Clients[0].Addr().String(), port, token, failed); err != nil {
		return err
	}
	address := fmt.Sprintf("https://127.0.0.1:%d", port)
	if err := waitReady(address, token, failed); err != nil {
		return err
	}
	path, err := writeKubeconfig(dir, address, token)
	if err != nil {
		return err
	}
	fmt.Println(path)
	ended := make(chan struct{})
	go func() { io.Copy(io.Discard, os.Stdin); close(ended) }()
	select {
	case err := <-failed:
		return err
	case <-ended:
		return nil
	}
}

func startEtcd(dir string) (*embed.Etcd, error) {
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.UnsafeNoFsync = dir, "error", true
	any := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{any}, []url.URL{any}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{any}, []url.URL{any}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		return nil, fmt.Errorf("starting etcd: %w", err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		return nil, fmt.Errorf("etcd: %w", err)
	case <-time.After(time.Minute):
		etcd.Close()
		return nil, errors.New("etcd isn't ready after a minute")
	}
}

// startAPI starts kube-apiserver with a user of all rights who has `token`. Its error, if it ends,
// goes to `failed`.
func startAPI(dir, etcd string, port int, token string, failed chan<- error) error {
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(token+`,admin,admin,"system:masters"`+"\n"), 0o600); err != nil {
		return err
	}
	key := filepath.Join(dir, "service-accounts.pem")
	if err := writeKey(key); err != nil {
		return err
	}
	c := app.NewAPIServerCommand()
	c.SetArgs([]string{
		"--etcd-servers=http://" + etcd,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir=" + filepath.Join(dir, "certificates"),
		"--token-auth-file=" + tokens,
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key,
		"--service-cluster-ip-range=10.0.0.0/24",
		"--endpoint-reconciler-type=none",
		// A controller would make the account "default" of each namespace, which pods need then.
		"--disable-admission-plugins=ServiceAccount",
		"-v=0",
	})
	go func() { failed <- fmt.Errorf("kube-apiserver ended: %v", c.ExecuteContext(context.Background())) }()
	return nil
}

func writeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

func waitReady(address, token string, failed <-chan error) error {
	// The certificate is one that the server has just made for itself.
	client := http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	deadline := time.After(2 * time.Minute)
	for {
		r, err := http.NewRequest(http.MethodGet, address+"/readyz", nil)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+token)
		if answer, err := client.Do(r); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-failed:
			return err
		case <-deadline:
			return errors.New("kube-apiserver isn't ready after two minutes")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func writeKubeconfig(dir, address, token string) (string, error) {
	path := filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: admin}}]
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: %q}}]
`, address, token)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
