package operator

import (
	"context"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"myelin/kube"
)

// Times of the lease. A leader that is gone is followed after Duration and at most
// Retry; one that can't renew stops after Deadline, before anybody follows.
const (
	leaseDuration = 12 * time.Second
	leaseDeadline = 8 * time.Second
	leaseRetry    = 2 * time.Second
	// leaseAnswer bounds one request.
	leaseAnswer = 3 * time.Second
)

// leaseName is the Lease that leaders hold.
const leaseName = "myelin-operator"

// lease is the election of one leader among all operators. It goes by how long it has
// seen nothing change, never by what another's clock said. client-go's own
// election would bring clients of all kinds into the program.
type lease struct {
	client   *kube.Client
	path     string // of all Leases of the namespace
	identity string
	log      *slog.Logger
	now      func() time.Time

	seen  string    // the version that was seen
	since time.Time // and when first
}

func newLease(c *kube.Client, namespace, identity string, log *slog.Logger, now func() time.Time) *lease {
	r := kube.Resource{GroupVersionKind: schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1",
		Kind: "Lease"}, Plural: "leases"}
	return &lease{client: c, path: r.Path(namespace, ""), identity: identity, log: log, now: now}
}

// run calls lead whenever this one leads, until ctx ends. The context of lead ends when
// another may.
func (l *lease) run(ctx context.Context, lead func(context.Context)) {
	said := "" // what the log has last
	for {
		led, holder, err := l.try(ctx)
		switch {
		case led:
			said = ""
			l.log.Info("leading", "identity", l.identity)
			l.hold(ctx, lead)
		case ctx.Err() != nil:
		case err != nil && err.Error() != said:
			said = err.Error()
			l.log.Warn("the lease can't be had", "error", err)
		case err == nil && holder != "" && holder != said:
			said = holder
			l.log.Info("another leads", "identity", holder)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(leaseRetry):
		}
	}
}

// hold leads while the lease can be renewed.
func (l *lease) hold(ctx context.Context, lead func(context.Context)) {
	during, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		lead(during)
	}()
	renewed := l.now()
	for during.Err() == nil {
		select {
		case <-during.Done():
		case <-done:
			stop()
		case <-time.After(leaseRetry):
			asked := l.now()
			ok, _, err := l.try(during)
			switch {
			case ok:
				renewed = asked
			case err == nil, l.now().Sub(renewed) > leaseDeadline-leaseAnswer:
				l.log.Warn("not leading any more", "error", err)
				stop()
			}
		}
	}
	stop()
	<-done
	if ctx.Err() != nil {
		l.release()
	}
}

// try takes the lease, or renews it, where no other operator has it.
func (l *lease) try(ctx context.Context) (ok bool, holder string, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaseAnswer)
	defer cancel()
	var have coordinationv1.Lease
	err = l.client.Get(ctx, l.path+"/"+leaseName, &have)
	now := l.now()
	switch {
	case apierrors.IsNotFound(err):
		have = coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName}}
		l.fill(&have, now)
		have.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
		err = l.client.Create(ctx, l.path, &have, &have)
		return err == nil, "", quiet(err)
	case err != nil:
		return false, "", err
	}
	if have.ResourceVersion != l.seen {
		l.seen, l.since = have.ResourceVersion, now
	}
	if h := have.Spec.HolderIdentity; h != nil && *h != "" && *h != l.identity {
		if now.Sub(l.since) < leaseDuration {
			return false, *h, nil
		}
	}
	l.fill(&have, now)
	err = l.client.Put(ctx, l.path+"/"+leaseName, &have, &have)
	return err == nil, "", quiet(err)
}

// quiet leaves out that another was faster.
func quiet(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (l *lease) fill(o *coordinationv1.Lease, now time.Time) {
	at, seconds := metav1.NewMicroTime(now), int32(leaseDuration/time.Second)
	if o.Spec.HolderIdentity == nil || *o.Spec.HolderIdentity != l.identity {
		var transitions int32
		if o.Spec.LeaseTransitions != nil {
			transitions = *o.Spec.LeaseTransitions + 1
		}
		o.Spec.AcquireTime, o.Spec.LeaseTransitions = &at, &transitions
	}
	o.Spec.HolderIdentity, o.Spec.RenewTime, o.Spec.LeaseDurationSeconds = &l.identity, &at, &seconds
}

// release lets another follow at once.
func (l *lease) release() {
	ctx, cancel := context.WithTimeout(context.Background(), leaseAnswer)
	defer cancel()
	var have coordinationv1.Lease
	err := l.client.Get(ctx, l.path+"/"+leaseName, &have)
	if err == nil && have.Spec.HolderIdentity != nil && *have.Spec.HolderIdentity == l.identity {
		released := ""
		have.Spec.HolderIdentity = &released
		err = l.client.Put(ctx, l.path+"/"+leaseName, &have, nil)
	}
	if err != nil {
		l.log.Warn("the lease isn't given back: another leads after its time", "error", err)
	}
}
