"""The contract of a landing flow: records in, typed columns or a reason out."""
