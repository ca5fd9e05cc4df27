"""`bench`: is this commit slower, since which one, and how did it come to where it is?"""
