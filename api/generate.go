package api

//go:generate ../scripts/protoc.sh
