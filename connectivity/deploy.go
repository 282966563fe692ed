package connectivity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// deployTime bounds how long pods may take to run, and addressTime how long a
	// LoadBalancer may be without an address before it is assumed that none assigns one.
	deployTime  = 90 * time.Second
	addressTime = 5 * time.Second
	// cleanTime bounds the end.
	cleanTime = 90 * time.Second
	// look is how often anything is looked at.
	look = 250 * time.Millisecond
)

// create makes an object.
func (s *server) create(ctx context.Context, o object) error {
	if err := s.Do(ctx, http.MethodPost, o.collection, o.body, nil); err != nil {
		return fmt.Errorf("create %s: %w", o.path(), err)
	}
	return nil
}

// deploy makes all that tests need, and waits for it. A pod that doesn't come up is
// no error: it is what is wrong with those tests that need it.
func (s *server) deploy(ctx context.Context, f *facts, namespace string) error {
	f.crew = newCrew(namespace, f.near, f.far)
	for _, ns := range []string{namespace, f.other.namespace} {
		if err := s.create(ctx, namespaceObject(ns)); err != nil {
			return err
		}
	}
	if err := s.launch(ctx, f, namespace); err != nil {
		return err
	}
	return s.learn(ctx, f, namespace)
}

// launch makes pods and Services, and waits for the former.
func (s *server) launch(ctx context.Context, f *facts, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, deployTime)
	defer cancel()
	for _, ns := range []string{namespace, f.other.namespace} {
		err := poll(ctx, func() (bool, error) {
			err := s.Get(ctx, "/api/v1/namespaces/"+ns+"/serviceaccounts/default", nil)
			return err == nil, ignoreMissing(err)
		})
		if err != nil {
			return fmt.Errorf("wait for the service account of namespace %s: %w", ns, err)
		}
	}
	for _, p := range f.all() {
		if err := s.create(ctx, p.object(f.image)); err != nil {
			return err
		}
	}
	for _, o := range services(namespace) {
		if err := s.create(ctx, o); err != nil {
			return err
		}
	}
	pods, ctx := errgroup.WithContext(ctx)
	for _, p := range f.all() {
		pods.Go(func() error { return s.await(ctx, p) })
	}
	return pods.Wait()
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// poll asks again and again until the answer is yes, an error, or the end.
func poll(ctx context.Context, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(look):
		}
	}
}

// await waits until a pod runs and has its addresses.
func (s *server) await(ctx context.Context, p *pod) error {
	var now corev1.Pod
	err := poll(ctx, func() (bool, error) {
		err := s.Get(ctx, "/api/v1/namespaces/"+p.namespace+"/pods/"+p.name, &now)
		return err == nil && (waiting(&now) == "" || now.Status.Phase == corev1.PodFailed), err
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if p.problem = waiting(&now); p.problem != "" {
		p.problem = fmt.Sprintf("pod %s doesn't run on node %s: %s", p, p.node, s.warning(ctx, p, p.problem))
		return nil
	}
	for _, ip := range now.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			p.addrs = append(p.addrs, a)
		}
	}
	for _, ip := range now.Status.HostIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			p.hostAddrs = append(p.hostAddrs, a)
		}
	}
	return nil
}

// warning is what the cluster says last of a pod that doesn't come up; else what is
// known already.
func (s *server) warning(ctx context.Context, p *pod, known string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), addressTime)
	defer cancel()
	var events corev1.EventList
	selector := url.QueryEscape("involvedObject.name=" + p.name + ",type=" + corev1.EventTypeWarning)
	if err := s.Get(ctx, "/api/v1/namespaces/"+p.namespace+"/events?fieldSelector="+selector, &events); err != nil ||
		len(events.Items) == 0 {
		return known
	}
	last := slices.MaxFunc(events.Items, func(a, b corev1.Event) int {
		return a.LastTimestamp.Compare(b.LastTimestamp.Time)
	})
	return fmt.Sprintf("%s (%s: %s)", known, last.Reason, last.Message)
}

// waiting is why a pod is not ready; empty: it is.
func waiting(p *corev1.Pod) string {
	why := cmp.Or(p.Status.Message, p.Status.Reason)
	for _, c := range p.Status.ContainerStatuses {
		switch {
		case c.State.Waiting != nil:
			why = cmp.Or(c.State.Waiting.Message, c.State.Waiting.Reason, why)
		case c.State.Terminated != nil:
			why = fmt.Sprintf("container %s ended with %d", c.Name, c.State.Terminated.ExitCode)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && len(p.Status.PodIPs) > 0 {
			return ""
		}
	}
	return cmp.Or(why, "phase "+string(p.Status.Phase))
}

// learn reads what the Services were given.
func (s *server) learn(ctx context.Context, f *facts, namespace string) error {
	for _, o := range services(namespace) {
		var now corev1.Service
		if err := s.Get(ctx, o.path(), &now); err != nil {
			return err
		}
		for _, ip := range now.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(ip); err == nil {
				f.addresses[o.name] = append(f.addresses[o.name], a)
			}
		}
		f.nodePort[o.name] = uint16(now.Spec.Ports[0].NodePort)
	}
	ctx, cancel := context.WithTimeout(ctx, addressTime)
	defer cancel()
	err := poll(ctx, func() (bool, error) {
		var now corev1.Service
		err := s.Get(ctx, "/api/v1/namespaces/"+namespace+"/services/balanced", &now)
		f.ingress = nil
		for _, in := range now.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(in.IP); err == nil {
				f.ingress = append(f.ingress, a)
			}
		}
		return len(f.ingress) > 0, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// former are namespaces of other runs.
func (s *server) former(ctx context.Context) (names []string, err error) {
	var list corev1.NamespaceList
	err = s.Get(ctx, "/api/v1/namespaces?labelSelector="+url.QueryEscape(runLabel+"="+runLabelValue), &list)
	for _, ns := range list.Items {
		names = append(names, ns.Name)
	}
	return names, err
}

// clean deletes the namespaces and waits until they are gone.
func (s *server) clean(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTime)
	defer cancel()
	names := []string{namespace, namespace + "-other"}
	var errs []error
	for _, ns := range names {
		errs = append(errs, s.Remove(ctx, "/api/v1/namespaces/"+ns))
	}
	for _, ns := range names {
		err := poll(ctx, func() (bool, error) {
			err := s.Get(ctx, "/api/v1/namespaces/"+ns, nil)
			return apierrors.IsNotFound(err), ignoreMissing(err)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("delete namespace %s: %w", ns, err))
		}
	}
	return errors.Join(errs...)
}
