package operator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/operator/pki"
)

// Certificate is a Secret of type kubernetes.io/tls that the operator makes and renews: tls.crt, tls.key, and ca.crt
// with the CAs that certificates of the other side may be of.
type Certificate struct {
	Secret string
	pki.Request
}

// caSecret has the CA of all certificates. One that others made is used as it is.
const caSecret = "myelin-ca"

// ManagedBy is the label of Secrets that the operator made, with Manager for a value. It changes no others.
const (
	ManagedBy = "app.kubernetes.io/managed-by"
	Manager   = "myelin-operator"
)

// Keys of Secrets. next.* is the CA that will be, which is trusted before it signs.
const (
	keyCA, keyCAKey     = "ca.crt", "ca.key"
	keyNext, keyNextKey = "next.crt", "next.key"
)

const (
	caName     = "Myelin CA"
	caValidity = 3 * 365 * 24 * time.Hour
	// caNotice is how long a new CA is trusted before it signs: kubelets and servers need minutes.
	caNotice = 24 * time.Hour
	// defaultCertificatePace is how often Secrets are looked at. They are not watched: that would need rights to more
	// than single ones.
	defaultCertificatePace = time.Minute
)

func secretPath(namespace, name string) string {
	r := coreKind("Secret", "secrets")
	return r.Path(namespace, name)
}

// keepCertificates makes Secrets, and certificates in the place of those that expire.
func (o *Operator) keepCertificates(ctx context.Context, w *world) error {
	w.check = o.Now().Add(o.CertificatePace)
	ca, trusted, err := o.keepCA(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range o.Certificates {
		if err := o.keepCertificate(ctx, w, ca, trusted, c); err != nil {
			collect(&errs, fmt.Errorf("Secret %s/%s: %w", o.Namespace, c.Secret, err))
		}
	}
	return errors.Join(errs...)
}

// secret reads a Secret; nil: there is none. The others are the operator's if it made them.
func (o *Operator) secret(ctx context.Context, name string) (have *corev1.Secret, ours bool, err error) {
	have = &corev1.Secret{}
	err = o.client.Get(ctx, secretPath(o.Namespace, name), have)
	if apierrors.IsNotFound(err) {
		return nil, true, nil
	}
	return have, have.Labels[ManagedBy] == Manager, err
}

// writeSecret creates a Secret, or replaces one that the operator made.
func (o *Operator) writeSecret(ctx context.Context, have *corev1.Secret, name string, kind corev1.SecretType,
	data map[string][]byte) error {
	next := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Type: kind, Data: data}
	if have == nil {
		next.ObjectMeta = metav1.ObjectMeta{Name: name, Namespace: o.Namespace, Labels: map[string]string{
			ManagedBy: Manager, "app.kubernetes.io/part-of": "myelin"}}
		return o.client.Create(ctx, secretPath(o.Namespace, ""), next, nil)
	}
	next.ObjectMeta, next.Type = have.ObjectMeta, have.Type // with its version: of two writers one fails
	return o.client.Put(ctx, secretPath(o.Namespace, name), next, nil)
}

// keepCA returns the CA that signs, and all that are trusted. A CA that gets old has a successor: at first all trust
// both, then the new one signs, and the old one is trusted until it has expired.
func (o *Operator) keepCA(ctx context.Context) (ca *pki.Authority, trusted []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("Secret %s/%s: %w", o.Namespace, caSecret, err)
		}
	}()
	now := o.Now()
	have, ours, err := o.secret(ctx, caSecret)
	if err != nil {
		return nil, nil, err
	}
	data := map[string][]byte{}
	if have != nil {
		data = maps.Clone(have.Data)
		ca, err = pki.ReadAuthority(pki.Pair{Cert: data[keyCA], Key: data[keyCAKey]})
	}
	switch {
	case !ours && err != nil:
		return nil, nil, fmt.Errorf("%w; %s and %s must be a CA's: the operator did not make it, and leaves it", err,
			keyCA, keyCAKey)
	case !ours:
		return ca, pki.Bundle(now, data[keyCA]), nil
	}
	if ca, err = o.renewCA(ca, data, now); err != nil {
		return nil, nil, err
	}
	if have == nil || !maps.EqualFunc(data, have.Data, bytes.Equal) {
		if err := o.writeSecret(ctx, have, caSecret, corev1.SecretTypeOpaque, data); err != nil {
			return nil, nil, err
		}
		o.Log.Info("the CA of certificates is written", "secret", caSecret)
	}
	return ca, pki.Bundle(now, data[keyCA], data[keyNext]), nil
}

// renewCA writes into data what the CA's Secret is to have, and returns the CA that signs. ca is nil if there is none
// that can be used.
func (o *Operator) renewCA(ca *pki.Authority, data map[string][]byte, now time.Time) (*pki.Authority, error) {
	set := func(cert, key string, p pki.Pair) { data[cert], data[key] = p.Cert, p.Key }
	if ca == nil {
		made, err := pki.NewAuthority(caName, now, caValidity)
		if err != nil {
			return nil, err
		}
		clear(data)
		set(keyCA, keyCAKey, made.Pair)
		return made, nil
	}
	next, err := pki.ReadAuthority(pki.Pair{Cert: data[keyNext], Key: data[keyNextKey]})
	switch {
	case err == nil && !now.Before(next.Begin().Add(caNotice)):
		set(keyCA, keyCAKey, pki.Pair{Cert: pki.Bundle(now, next.Cert, data[keyCA]), Key: next.Key})
		delete(data, keyNext)
		delete(data, keyNextKey)
		return pki.ReadAuthority(pki.Pair{Cert: data[keyCA], Key: data[keyCAKey]})
	case err == nil || !ca.Old(now):
		data[keyCA] = pki.Bundle(now, ca.Certificate(), data[keyCA])
		if len(data[keyCA]) == 0 { // it has expired, since no operator ran
			return o.renewCA(nil, data, now)
		}
		return ca, nil
	}
	if next, err = pki.NewAuthority(caName, now, caValidity); err != nil {
		return nil, err
	}
	set(keyNext, keyNextKey, next.Pair)
	return ca, nil
}

func (o *Operator) keepCertificate(ctx context.Context, w *world, ca *pki.Authority, trusted []byte,
	c Certificate) error {
	have, ours, err := o.secret(ctx, c.Secret)
	if err != nil {
		return err
	}
	if !ours {
		if w.said[c.Secret] == "" {
			w.said[c.Secret] = "foreign"
			o.Log.Warn("a Secret with certificates is not the operator's: it is left as it is, and not renewed",
				"secret", c.Secret)
		}
		return nil
	}
	var pair pki.Pair
	why := "there is none"
	if have != nil {
		pair = pki.Pair{Cert: have.Data[corev1.TLSCertKey], Key: have.Data[corev1.TLSPrivateKeyKey]}
		why = ca.Outdated(pair, c.Request, o.Now())
	}
	if why == "" && bytes.Equal(have.Data[keyCA], trusted) {
		o.metrics.setCertificate(c.Secret, pair)
		return nil
	}
	if why != "" {
		if pair, err = ca.Issue(c.Request, o.Now()); err != nil {
			return err
		}
	}
	if err := o.writeSecret(ctx, have, c.Secret, corev1.SecretTypeTLS, map[string][]byte{
		corev1.TLSCertKey: pair.Cert, corev1.TLSPrivateKeyKey: pair.Key, keyCA: trusted,
	}); err != nil {
		return err
	}
	if why == "" {
		why = "the CA has changed"
	}
	o.Log.Info("a certificate is written", "secret", c.Secret, "reason", why)
	o.metrics.setCertificate(c.Secret, pair)
	return nil
}
