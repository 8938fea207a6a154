"""A broker's place in its cluster, alone (sole_member.py) or with others (cluster_member.py); its control plane."""
