// A DRA driver in plain Go for `dra conformance`: four simulated cards, no Kubernetes client library.
//
// It sends objects in protobuf, as client-go does. The variable ACCEPT selects the forms of responses.
//
// It publishes one ResourceSlice, prepares claims with one CDI spec for each claim, keeps a
// checkpoint of prepared claims, and supports rolling updates. It has no device health service.
//
// test_conformance_go_driver.py builds and runs it with the packages of Debian 12: golang-go,
// golang-google-grpc-dev, golang-google-protobuf-dev, golang-github-golang-protobuf-1-5-dev,
// protobuf-compiler, protoc-gen-go and protoc-gen-go-grpc. The test generates the packages
// below godriver/ from proto/ and kubernetes.proto with protoc.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"godriver/dra"
	"godriver/kubernetes"
	"godriver/registration"
)

const (
	driverName = "cards.go.example.com"
	cdiKind    = driverName + "/card"
	resources  = "/apis/resource.k8s.io/v1"
	firstPause = 100 * time.Millisecond
	protobuf   = "application/vnd.kubernetes.protobuf"
	prefix     = "k8s\x00"
)

var cards = []string{"card-0", "card-1", "card-2", "card-3"}

// apiServer sends requests to the API server of a kubeconfig.
type apiServer struct {
	url, token, accept string
	http               http.Client
}

// newAPIServer reads a kubeconfig with one cluster and one user.
func newAPIServer(path string) (*apiServer, error) {
	config, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	value := func(key string) string {
		match := regexp.MustCompile(`\b` + key + `"?:\s*"?([^"\s,}]+)`).FindSubmatch(config)
		if match == nil {
			return ""
		}
		return string(match[1])
	}
	ca, err := base64.StdEncoding.DecodeString(value("certificate-authority-data"))
	if err == nil && len(ca) == 0 {
		ca, err = os.ReadFile(value("certificate-authority"))
	}
	if err != nil {
		return nil, fmt.Errorf("certificate authority of %s: %w", path, err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	accept := os.Getenv("ACCEPT")
	if accept == "" {
		accept = protobuf + ",application/json"
	}
	return &apiServer{value("server"), value("token"), accept, http.Client{Transport: transport}}, nil
}

// call sends a body as client-go does: as protobuf. It decodes the response, or the first event of a watch.
func (a *apiServer) call(ctx context.Context, method, path, kind string, body, out proto.Message) error {
	data, err := encode(kind, body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, a.url+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	request.Header.Set("Content-Type", protobuf)
	request.Header.Set("Accept", a.accept)
	response, err := a.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 300))
		return fmt.Errorf("%s %s: %s: %q", method, path, response.Status, text)
	}
	return decode(response, out)
}

// encode returns the envelope that contains the message of a kind of resource.k8s.io/v1, or nil for no body.
func encode(kind string, body proto.Message) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	raw, err := proto.Marshal(body)
	if err != nil {
		return nil, err
	}
	meta := &kubernetes.TypeMeta{ApiVersion: "resource.k8s.io/v1", Kind: kind}
	envelope, err := proto.Marshal(&kubernetes.Unknown{TypeMeta: meta, Raw: raw})
	return append([]byte(prefix), envelope...), err
}

// decode reads the form that the response names: JSON or protobuf.
func decode(response *http.Response, out proto.Message) error {
	form, parameters, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	if form != protobuf {
		return json.NewDecoder(response.Body).Decode(out)
	}
	if parameters["stream"] != "watch" {
		data, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		return unwrap(data, out)
	}
	size := make([]byte, 4)
	if _, err := io.ReadFull(response.Body, size); err != nil {
		return err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size))
	if _, err := io.ReadFull(response.Body, frame); err != nil {
		return err
	}
	return proto.Unmarshal(frame, out)
}

func unwrap(data []byte, out proto.Message) error {
	var envelope kubernetes.Unknown
	if !bytes.HasPrefix(data, []byte(prefix)) {
		return fmt.Errorf("a response without the prefix: %.20q", data)
	}
	if err := proto.Unmarshal(data[len(prefix):], &envelope); err != nil {
		return err
	}
	return proto.Unmarshal(envelope.Raw, out)
}

// publisher keeps the pool of this node at exactly one ResourceSlice.
type publisher struct {
	api  *apiServer
	node string
}

func (p *publisher) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		err := p.reconcile(ctx)
		if err == nil {
			pause = firstPause
			continue
		}
		if ctx.Err() == nil {
			log.Printf("publish: %v; next attempt in %v", err, pause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		if pause *= 2; pause > 20*time.Second {
			pause = 20 * time.Second
		}
	}
}

// reconcile repairs the slices, then waits until one of them changes or the watch ends.
func (p *publisher) reconcile(parent context.Context) error {
	ctx, cancel := context.WithTimeout(parent, 10*time.Second)
	defer cancel()
	own := resources + "/resourceslices?fieldSelector=" + url.QueryEscape("spec.driver="+driverName+",spec.nodeName="+p.node)
	var list kubernetes.ResourceSliceList
	if err := p.api.call(ctx, "GET", own, "", nil, &list); err != nil {
		return err
	}
	name := p.node + "-" + driverName
	var current *kubernetes.ResourceSlice
	var generation int64
	for _, s := range list.Items {
		if s.Spec.Pool.Generation > generation {
			generation = s.Spec.Pool.Generation
		}
		if s.Metadata.Name == name {
			current = s
		}
	}
	if current == nil || !proto.Equal(current.Spec, p.spec(generation)) {
		if err := p.write(ctx, name, current, generation+1); err != nil {
			return err
		}
	}
	for _, s := range list.Items {
		if s.Metadata.Name != name {
			path := resources + "/resourceslices/" + s.Metadata.Name
			if err := p.api.call(ctx, "DELETE", path, "DeleteOptions", &kubernetes.DeleteOptions{}, &kubernetes.Node{}); err != nil {
				return err
			}
		}
	}
	ctx, cancel = context.WithTimeout(parent, 100*time.Second)
	defer cancel()
	watch := own + "&watch=true&timeoutSeconds=90&resourceVersion=" + list.Metadata.ResourceVersion
	var event kubernetes.WatchEvent
	err := p.api.call(ctx, "GET", watch, "", nil, &event)
	if errors.Is(err, io.EOF) {
		return nil // The watch ended without a change.
	}
	return err
}

func (p *publisher) spec(generation int64) *kubernetes.ResourceSliceSpec {
	pool := &kubernetes.ResourcePool{Name: p.node, Generation: generation, ResourceSliceCount: 1}
	spec := &kubernetes.ResourceSliceSpec{Driver: driverName, NodeName: p.node, Pool: pool}
	for _, card := range cards {
		attributes := map[string]*kubernetes.DeviceAttribute{"model": {String_: "go-card"}}
		spec.Devices = append(spec.Devices, &kubernetes.Device{Name: card, Attributes: attributes})
	}
	return spec
}

func (p *publisher) write(ctx context.Context, name string, current *kubernetes.ResourceSlice, generation int64) error {
	var node kubernetes.Node
	if err := p.api.call(ctx, "GET", "/api/v1/nodes/"+p.node, "", nil, &node); err != nil {
		return err
	}
	owner := &kubernetes.OwnerReference{ApiVersion: "v1", Kind: "Node", Name: p.node, Uid: node.Metadata.Uid, Controller: true}
	meta := &kubernetes.ObjectMeta{Name: name, OwnerReferences: []*kubernetes.OwnerReference{owner}}
	next := &kubernetes.ResourceSlice{Metadata: meta, Spec: p.spec(generation)}
	var stored kubernetes.ResourceSlice
	if current == nil {
		return p.api.call(ctx, "POST", resources+"/resourceslices", "ResourceSlice", next, &stored)
	}
	meta.ResourceVersion = current.Metadata.ResourceVersion
	return p.api.call(ctx, "PUT", resources+"/resourceslices/"+name, "ResourceSlice", next, &stored)
}

type preparedDevice struct{ Request, Pool, Device string }

// claims are the prepared claims by UID: the content of the checkpoint.
type claims map[string][]preparedDevice

// service prepares claims. Two instances of the driver may share its files during an update,
// so each call reads the checkpoint under a file lock.
type service struct {
	dra.UnimplementedDRAPluginServer
	api             *apiServer
	node, data, cdi string
}

// locked calls fn with the checkpoint, and stores the checkpoint if fn returns true.
func (s *service) locked(fn func(claims) (bool, error)) error {
	path := filepath.Join(s.data, "checkpoint.json")
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	prepared := claims{}
	data, err := os.ReadFile(path)
	if err == nil {
		if err := json.Unmarshal(data, &prepared); err != nil {
			log.Printf("ignoring the damaged checkpoint %s: %v", path, err)
			prepared = claims{}
		}
	} else if !os.IsNotExist(err) {
		return err
	}
	if changed, err := fn(prepared); err != nil || !changed {
		return err
	}
	return writeJSON(path, prepared, 0o600)
}

// writeJSON replaces a file, so that a reader or a crash never sees a partial file.
func writeJSON(path string, content any, mode os.FileMode) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if _, err := file.Write(data); err != nil {
		return err
	}
	if err := file.Chmod(mode); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

func (s *service) NodePrepareResources(ctx context.Context, request *dra.NodePrepareResourcesRequest) (*dra.NodePrepareResourcesResponse, error) {
	response := &dra.NodePrepareResourcesResponse{Claims: map[string]*dra.NodePrepareResourceResponse{}}
	for _, claim := range request.Claims {
		result := &dra.NodePrepareResourceResponse{}
		response.Claims[claim.Uid] = result
		devices, err := s.prepare(ctx, claim)
		if err != nil {
			log.Printf("prepare %s/%s: %v", claim.Namespace, claim.Name, err)
			result.Error = err.Error()
			continue
		}
		for _, d := range devices {
			result.Devices = append(result.Devices, &dra.Device{
				RequestNames: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device,
				CdiDeviceIds: []string{cdiKind + "=" + claim.Uid + "-" + d.Device},
			})
		}
	}
	return response, nil
}

func (s *service) prepare(ctx context.Context, claim *dra.Claim) (devices []preparedDevice, err error) {
	known := false
	err = s.locked(func(prepared claims) (bool, error) {
		if devices, known = prepared[claim.Uid]; known {
			return false, s.writeSpec(claim.Uid, devices) // A reboot deletes the spec.
		}
		return false, nil
	})
	if known || err != nil {
		return devices, err
	}
	// The lock is free during the request, so a slow API server delays no other claim.
	if devices, err = s.allocated(ctx, claim); err != nil {
		return nil, err
	}
	return devices, s.locked(func(prepared claims) (bool, error) {
		for uid, others := range prepared {
			for _, other := range others {
				for _, d := range devices {
					if uid != claim.Uid && other.Device == d.Device {
						return false, fmt.Errorf("device %s is in use by the claim with UID %s", d.Device, uid)
					}
				}
			}
		}
		prepared[claim.Uid] = devices
		return true, s.writeSpec(claim.Uid, devices)
	})
}

// allocated returns the devices of this driver in the claim's allocation.
func (s *service) allocated(ctx context.Context, claim *dra.Claim) ([]preparedDevice, error) {
	var object kubernetes.ResourceClaim
	path := resources + "/namespaces/" + claim.Namespace + "/resourceclaims/" + claim.Name
	if err := s.api.call(ctx, "GET", path, "", nil, &object); err != nil {
		return nil, err
	}
	if object.Metadata.Uid != claim.Uid {
		return nil, fmt.Errorf("the claim %s/%s has the UID %s, not %s", claim.Namespace, claim.Name, object.Metadata.Uid, claim.Uid)
	}
	if object.Status.GetAllocation() == nil {
		return nil, fmt.Errorf("the claim %s/%s is not allocated", claim.Namespace, claim.Name)
	}
	devices := []preparedDevice{}
	for _, result := range object.Status.Allocation.Devices.Results {
		if result.Driver != driverName {
			continue
		}
		if result.Pool != s.node || !strings.Contains(" "+strings.Join(cards, " ")+" ", " "+result.Device+" ") {
			return nil, fmt.Errorf("the pool %s has no device %s on this node", result.Pool, result.Device)
		}
		request, _, _ := strings.Cut(result.Request, "/") // The name before "/" is the request, after it the alternative.
		devices = append(devices, preparedDevice{request, result.Pool, result.Device})
	}
	return devices, nil
}

func (s *service) NodeUnprepareResources(_ context.Context, request *dra.NodeUnprepareResourcesRequest) (*dra.NodeUnprepareResourcesResponse, error) {
	response := &dra.NodeUnprepareResourcesResponse{Claims: map[string]*dra.NodeUnprepareResourceResponse{}}
	for _, claim := range request.Claims {
		result := &dra.NodeUnprepareResourceResponse{}
		response.Claims[claim.Uid] = result
		err := s.locked(func(prepared claims) (bool, error) {
			if err := os.Remove(s.specPath(claim.Uid)); err != nil && !os.IsNotExist(err) {
				return false, err
			}
			delete(prepared, claim.Uid)
			return true, nil
		})
		if err != nil {
			log.Printf("unprepare %s/%s: %v", claim.Namespace, claim.Name, err)
			result.Error = err.Error()
		}
	}
	return response, nil
}

func (s *service) specPath(uid string) string {
	return filepath.Join(s.cdi, driverName+"-"+uid+".json")
}

// writeSpec writes the CDI spec of a claim.
func (s *service) writeSpec(uid string, devices []preparedDevice) error {
	type object map[string]any
	var list []object
	for _, d := range devices {
		env := strings.ToUpper(strings.ReplaceAll(d.Device, "-", "_")) + "=" + uid
		list = append(list, object{"name": uid + "-" + d.Device, "containerEdits": object{"env": []string{env}}})
	}
	if len(list) == 0 {
		return nil
	}
	// Version 0.5.0 is the first that permits a digit at the start of a device name.
	return writeJSON(s.specPath(uid), object{"cdiVersion": "0.5.0", "kind": cdiKind, "devices": list}, 0o644)
}

type registrar struct {
	registration.UnimplementedRegistrationServer
	endpoint string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: "DRAPlugin", Name: driverName, Endpoint: r.endpoint, SupportedVersions: []string{"v1.DRAPlugin"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("kubelet: registered: %v %s", status.PluginRegistered, status.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

// serve listens on a socket. A killed process leaves its socket behind, so serve deletes it first.
func serve(server *grpc.Server, path string) {
	os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if err := server.Serve(listener); err != nil {
			log.Fatalf("%s: %v", path, err)
		}
	}()
}

func main() {
	api, err := newAPIServer(os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	node, data, cdi := os.Getenv("NODE_NAME"), os.Getenv("PLUGIN_DATA_DIR"), os.Getenv("CDI_ROOT")
	for _, folder := range []string{data, cdi} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			log.Fatal(err)
		}
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()

	// Each instance has its own sockets, so an old and a new instance overlap during an update.
	endpoint := filepath.Join(data, "dra-"+os.Getenv("POD_UID")+".sock")
	plugin, registry := grpc.NewServer(), grpc.NewServer()
	dra.RegisterDRAPluginServer(plugin, &service{api: api, node: node, data: data, cdi: cdi})
	registration.RegisterRegistrationServer(registry, &registrar{endpoint: endpoint})
	serve(plugin, endpoint) // First, because the kubelet calls the plugin as soon as it is registered.
	serve(registry, filepath.Join(os.Getenv("PLUGINS_REGISTRY"), driverName+"-"+os.Getenv("POD_UID")+".sock"))

	(&publisher{api, node}).run(stop)
	registry.GracefulStop() // Deletes the socket.
	plugin.GracefulStop()
}
