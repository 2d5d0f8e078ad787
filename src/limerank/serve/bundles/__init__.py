"""Bundles: what one is, the store that holds several, their ids, and the offline item stage that makes one."""
