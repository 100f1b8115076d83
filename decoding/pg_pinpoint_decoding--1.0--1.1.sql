/* decoding/pg_pinpoint_decoding--1.0--1.1.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION pg_pinpoint_decoding UPDATE TO '1.1'" to load this file. \quit

-- The objects of 1.1 are those of 1.0.
