//! Attacks with the streams of one or a few HTTP/2 connections.
